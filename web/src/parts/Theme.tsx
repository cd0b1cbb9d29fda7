import { useState } from "react";

type Theme = "auto" | "light" | "dark";

const KEY = "query2particles.theme";
const NEXT: Record<Theme, Theme> = { auto: "dark", dark: "light", light: "auto" };
const SIGN: Record<Theme, string> = {
  auto: "M8 2 a6 6 0 1 1 0 12 a6 6 0 1 1 0 -12 V14 M10.5 3 V13 M13 5 V11",
  dark: "M13.5 9.8 A5.8 5.8 0 1 1 6.2 2.5 A4.6 4.6 0 0 0 13.5 9.8 Z",
  light:
    "M8 5 a3 3 0 1 1 0 6 a3 3 0 1 1 0 -6 M8 1 v1.6 M8 13.4 V15 M1 8 h1.6 M13.4 8 H15 M3 3 l1.2 1.2 M11.8 11.8 L13 13 M3 13 l1.2 -1.2 M11.8 4.2 L13 3",
};

function remembered(): Theme {
  const said = localStorage.getItem(KEY);
  return said === "light" || said === "dark" ? said : "auto";
}

function apply(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

apply(remembered()); // before anything is drawn

/** Dark, light, or as the system says. */
export function ThemeButton() {
  const [theme, setTheme] = useState(remembered);
  const change = () => {
    const next = NEXT[theme];
    localStorage.setItem(KEY, next);
    apply(next);
    setTheme(next);
  };
  return (
    <button
      type="button"
      className="icon"
      aria-label={`Colours: ${theme}. Change to ${NEXT[theme]}`}
      title={`Colours: ${theme}`}
      onClick={change}
    >
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <path d={SIGN[theme]} />
      </svg>
    </button>
  );
}

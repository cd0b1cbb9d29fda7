import { useEffect, useLayoutEffect, useState, type RefObject } from "react";

/** `value`, once it has stayed the same for a while. */
export function useSettled<Value>(value: Value, milliseconds: number): Value {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

export type Loading<Value> =
  | { readonly state: "idle" | "loading" }
  | { readonly state: "done"; readonly value: Value }
  | { readonly state: "failed"; readonly error: Error };

/** What `load` brings for a key; it is asked again when the key changes, and not at all while the key is null. */
export function useLoaded<Value>(key: string | null, load: (signal: AbortSignal) => Promise<Value>): Loading<Value> {
  const [loaded, setLoaded] = useState<{ key: string | null; loading: Loading<Value> }>({
    key: null,
    loading: { state: "idle" },
  });
  useEffect(() => {
    if (key === null) return undefined;
    const abort = new AbortController();
    load(abort.signal).then(
      // An answer that comes after the key has changed must not take the place of the newer one.
      (value) => abort.signal.aborted || setLoaded({ key, loading: { state: "done", value } }),
      (error: Error) => abort.signal.aborted || setLoaded({ key, loading: { state: "failed", error } }),
    );
    return () => abort.abort();
    // oxlint-disable-next-line react-hooks/exhaustive-deps -- the key stands for everything that `load` closes over
  }, [key]);
  if (key === null) return { state: "idle" };
  return loaded.key === key ? loaded.loading : { state: "loading" };
}

/** Whether a CSS media query holds. */
export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const listen = () => setMatches(media.matches);
    media.addEventListener("change", listen);
    return () => media.removeEventListener("change", listen);
  }, [query]);
  return matches;
}

/** How wide an element is, in pixels. */
export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    if (!element.current) return undefined;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return width;
}

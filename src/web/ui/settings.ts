/** Settings that the browser stores. */

import { computed, signal, type Signal } from "@preact/signals";

/** A signal with a value of `values` that the browser stores. */
export function storedSignal<T extends string>(key: string, values: readonly T[], initial: T): Signal<T> {
  const stored = localStorage.getItem(key);
  const setting = signal(values.find((value) => value === stored) ?? initial);
  // Only a choice is stored, so that the default can follow the browser.
  const first = setting.peek();
  setting.subscribe((value) => {
    if (value !== first || localStorage.getItem(key) !== null) localStorage.setItem(key, value);
  });
  return setting;
}

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const theme = storedSignal<Theme>("theme", THEMES, "system");

const systemIsDark = signal(false);
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const readScheme = () => (systemIsDark.value = darkScheme.matches);
darkScheme.addEventListener("change", readScheme);
readScheme();
export const isDark = computed(() => (theme.value === "system" ? systemIsDark.value : theme.value === "dark"));

export const LANGUAGES = ["en", "de"] as const;
export type Language = (typeof LANGUAGES)[number];

export const language = storedSignal<Language>("language", LANGUAGES, navigator.language.startsWith("de") ? "de" : "en");

/** Parts of texts, for the words of all languages. */

/** Functions that write a number, and a number with a noun in the plural form of the language. */
export function numbersOf(language: string) {
  const number = (value: number) => value.toLocaleString(language);
  const rules = new Intl.PluralRules(language);
  return { number, counted: (count: number, one: string, other: string) => `${number(count)} ${rules.select(count) === "one" ? one : other}` };
}

/** The text of the server, as a sentence. */
export const sentence = (text: string | undefined) => (text ? ` ${text.replace(/[.\s]*$/, ".")}` : "");

/** The login page. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { getWays, providerUrl, type ApiError, type Ways } from "./api";
import { LanguageSelect } from "./parts";
import { login, takeLoginError } from "./state";
import { errorText, words } from "./words";

export function Login({ ended }: { ended: boolean }) {
  const text = words.login;
  const busy = useSignal(false);
  const error = useSignal<ApiError | null>(null);
  // Until the server answers, and if it does not, the form is shown.
  const ways = useSignal<Ways>({ password: true, providers: [] });
  const user = useRef<HTMLInputElement>(null);
  const password = useRef<HTMLInputElement>(null);
  useEffect(() => {
    user.current?.focus();
    error.value = takeLoginError();
    void getWays().then((answer) => answer.ok && (ways.value = answer.value));
  }, []);
  const { password: hasForm, providers } = ways.value;
  const page = location.pathname + location.search + location.hash;

  async function submit(event: SubmitEvent) {
    event.preventDefault();
    if (busy.value || !user.current || !password.current) return;
    busy.value = true;
    error.value = null;
    error.value = await login(user.current.value, password.current.value);
    busy.value = false;
    password.current?.select();
  }

  return (
    <main class="login">
      <p class="product">{words.product}</p>
      <h1>{text.title}</h1>
      {providers.map(({ name, title }) => (
        <a key={name} class="button primary" href={providerUrl(name, page)}>
          {text.by(title)}
        </a>
      ))}
      {hasForm && providers.length > 0 && <p class="or">{text.or}</p>}
      {hasForm && (
        <form onSubmit={submit}>
          <label for="user">{text.user}</label>
          <input ref={user} id="user" autocomplete="username" autocapitalize="none" spellcheck={false} required />
          <label for="password">{text.password}</label>
          <input ref={password} id="password" type="password" autocomplete="current-password" required />
          <button class={providers.length > 0 ? "" : "primary"} type="submit" aria-disabled={busy.value}>
            {busy.value ? text.busy : text.submit}
          </button>
        </form>
      )}
      <div class="message" role="alert">
        {error.value ? (
          <p class="error">{errorText(error.value)}</p>
        ) : !hasForm && providers.length === 0 ? (
          <p>{text.noWay}</p>
        ) : (
          ended && !busy.value && <p>{text.ended}</p>
        )}
      </div>
      <div class="footer">
        <a href="/licenses.txt">{text.licenses}</a>
        <LanguageSelect />
      </div>
    </main>
  );
}

/** Browsers send the session's cookie by HTTPS or to localhost only. */
export function Insecure() {
  return (
    <main class="login">
      <p class="product">{words.product}</p>
      <h1>{words.login.insecure}</h1>
      <p>{words.login.insecureNext}</p>
      <div class="footer">
        <LanguageSelect />
      </div>
    </main>
  );
}

/** The login page. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { ApiError } from "./api";
import { login } from "./state";
import { errorText, words } from "./words";

export function Login({ ended }: { ended: boolean }) {
  const text = words.login;
  const busy = useSignal(false);
  const error = useSignal<ApiError | null>(null);
  const user = useRef<HTMLInputElement>(null);
  const password = useRef<HTMLInputElement>(null);
  useEffect(() => user.current?.focus(), []);

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
      <form onSubmit={submit}>
        <label for="user">{text.user}</label>
        <input ref={user} id="user" autocomplete="username" autocapitalize="none" spellcheck={false} required />
        <label for="password">{text.password}</label>
        <input ref={password} id="password" type="password" autocomplete="current-password" required />
        <button class="primary" type="submit" aria-disabled={busy.value}>
          {busy.value ? text.busy : text.submit}
        </button>
        <div class="message" role="alert">
          {error.value ? <p class="error">{errorText(error.value)}</p> : ended && !busy.value && <p>{text.ended}</p>}
        </div>
      </form>
      <p class="licenses">
        <a href="/licenses.txt">{text.licenses}</a>
      </p>
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
    </main>
  );
}

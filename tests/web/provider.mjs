// A provider of OpenID Connect on 127.0.0.1, for tests. Argument: the address to which it sends browsers after a login.
// It prints its own address. Each name is a user with any password; the users root, ops and alice have roles.
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const ROLES = { root: ["admin"], ops: ["operators"], alice: ["operators"] };

// The test closes standard output after the address.
console.info = console.error;
const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const provider = new Provider(issuer, {
  clients: [{ client_id: "console", client_secret: "hidden", redirect_uris: [process.argv[2]] }],
  claims: { openid: ["sub", "preferred_username", "name", "realm_access"] },
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  cookies: { keys: ["test"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: `${id}@example`, name: `The ${id}`, realm_access: { roles: ROLES[id] ?? [] } }),
  }),
});
server.on("request", provider.callback());
console.log(issuer);

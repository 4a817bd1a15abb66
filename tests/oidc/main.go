// An OpenID Connect provider in a pod of `services.auth`: the example of zitadel/oidc, with TLS. Its argument is the issuer.
package main

import (
	"log"
	"log/slog"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

func main() {
	issuer := os.Args[1]
	storage.RegisterClients(storage.WebClient("tenant", "secret"), storage.WebClient("other", "secret"))
	users := storage.NewStorage(storage.NewUserStore(issuer))
	provider := exampleop.SetupServer(issuer, users, slog.Default(), false)
	log.Fatal(http.ListenAndServeTLS(":5556", "/etc/dex-tls/tls.crt", "/etc/dex-tls/tls.key", provider))
}

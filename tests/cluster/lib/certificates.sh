# One CA, one certificate for each component, and the kubeconfigs made of them.

CERTS=$DIR/certificates

make_certificates() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$CERTS/ca.key"
    openssl req -x509 -new -key "$CERTS/ca.key" -sha256 -days 365 -subj /CN=vmop-cluster-ca \
        -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature -out "$CERTS/ca.crt"
    # Tokens of service accounts are RSA signatures.
    openssl genrsa -out "$CERTS/service-account.key" 2048 2>/dev/null
    openssl rsa -in "$CERTS/service-account.key" -pubout -out "$CERTS/service-account.pub" 2>/dev/null

    certificate apiserver /CN=kube-apiserver \
        "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$API_ADDRESS,IP:$NODE_ADDRESS"
    certificate kubelet "/O=system:nodes/CN=system:node:$NODE_NAME" "DNS:$NODE_NAME,IP:$NODE_ADDRESS"
    certificate apiserver-kubelet-client /CN=kube-apiserver-kubelet-client
    certificate admin /O=system:masters/CN=vmop-cluster-admin
    certificate kube-controller-manager /CN=system:kube-controller-manager
    certificate kube-scheduler /CN=system:kube-scheduler
    certificate kube-proxy /CN=system:kube-proxy

    kubeconfig admin "$DIR/admin.kubeconfig"
    local component
    for component in kubelet kube-controller-manager kube-scheduler kube-proxy; do
        kubeconfig "$component" "$CERTS/$component.kubeconfig"
    done
}

# certificate NAME SUBJECT [ALTERNATIVE NAMES]
certificate() {
    local name=$1 subject=$2 names=${3:-}
    openssl ecparam -name prime256v1 -genkey -noout -out "$CERTS/$name.key"
    {
        say "basicConstraints = CA:FALSE"
        say "keyUsage = digitalSignature"
        say "extendedKeyUsage = clientAuth, serverAuth"
        [[ -z $names ]] || say "subjectAltName = $names"
    } >"$CERTS/$name.ext"
    openssl req -new -key "$CERTS/$name.key" -subj "$subject" |
        openssl x509 -req -sha256 -days 365 -CA "$CERTS/ca.crt" -CAkey "$CERTS/ca.key" \
            -CAcreateserial -extfile "$CERTS/$name.ext" -out "$CERTS/$name.crt" 2>/dev/null
    rm "$CERTS/$name.ext"
}

# kubeconfig NAME FILE: with everything inside, so that the file alone will do.
kubeconfig() {
    (
        umask 077
        cat >"$2" <<YAML
apiVersion: v1
kind: Config
clusters:
  - name: vmop
    cluster:
      server: https://$NODE_ADDRESS:$API_PORT
      certificate-authority-data: $(base64 --wrap 0 "$CERTS/ca.crt")
users:
  - name: $1
    user:
      client-certificate-data: $(base64 --wrap 0 "$CERTS/$1.crt")
      client-key-data: $(base64 --wrap 0 "$CERTS/$1.key")
contexts:
  - name: vmop
    context: {cluster: vmop, user: $1}
current-context: vmop
YAML
    )
}

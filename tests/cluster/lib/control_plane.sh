# etcd, the API server, the controller manager and the scheduler. All listen on
# loopback, except for the API server: pods reach it at the node's address.

start_control_plane() {
    make_node_bridge
    start_etcd
    start_apiserver
    wait_for 60 "the API server" api_ready
    bind_kubelet_api
    start_controller_manager
    start_scheduler
}

start_etcd() {
    # The data need not survive a power failure, so commits do not wait for the disk.
    spawn etcd "$DIR/bin/vmop-kube" etcd --name "$NODE_NAME" --data-dir "$DIR/etcd" --unsafe-no-fsync \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
        --initial-cluster "$NODE_NAME=http://127.0.0.1:2380" --log-level warn
}

start_apiserver() {
    # Tests read the requests, their users and their decisions from the audit log.
    cat >"$DIR/configuration/audit.yaml" <<'YAML'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
YAML
    # requestheader: no proxy has that name, but without these options the other components log a missing CA each
    # second. OwnerReferencesPermissionEnforcement is off by default but on in some distributions. It changes the
    # permissions that an operator needs.
    spawn kube-apiserver "$DIR/bin/vmop-kube" kube-apiserver \
        --etcd-servers http://127.0.0.1:2379 \
        --bind-address "$NODE_ADDRESS" --advertise-address "$NODE_ADDRESS" --secure-port "$API_PORT" \
        --tls-cert-file "$CERTS/apiserver.crt" --tls-private-key-file "$CERTS/apiserver.key" \
        --client-ca-file "$CERTS/ca.crt" \
        --requestheader-client-ca-file "$CERTS/ca.crt" --requestheader-allowed-names front-proxy \
        --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
        --requestheader-extra-headers-prefix X-Remote-Extra- \
        --kubelet-certificate-authority "$CERTS/ca.crt" \
        --kubelet-client-certificate "$CERTS/apiserver-kubelet-client.crt" \
        --kubelet-client-key "$CERTS/apiserver-kubelet-client.key" \
        --kubelet-preferred-address-types InternalIP \
        --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$CERTS/service-account.pub" \
        --service-account-signing-key-file "$CERTS/service-account.key" \
        --service-cluster-ip-range "$SERVICE_CIDR" \
        --authorization-mode Node,RBAC --allow-privileged=true \
        --enable-admission-plugins NodeRestriction,OwnerReferencesPermissionEnforcement \
        --audit-policy-file "$DIR/configuration/audit.yaml" --audit-log-path "$DIR/logs/audit.log" \
        --audit-log-maxsize 200 --audit-log-maxbackup 2
}

# Simulates a crash: SIGKILL without notice. Objects are in etcd, which continues to run.
restart_apiserver() {
    need_root
    need_cluster
    lock
    end_recorded kube-apiserver KILL
    local tries
    # Sometimes the address is still in use after the process has exited.
    for ((tries = 0; tries < 5; tries++)); do
        start_apiserver
        if (wait_for 60 "the API server" api_ready); then return; fi
        end_recorded kube-apiserver KILL
        sleep 1
    done
    die "the API server does not come back"
}

api_ready() { [[ $(kubectl get --raw /readyz) == ok ]]; }

has_default_account() { kubectl get serviceaccount default --namespace default; }

# As kubeadm does: the API server calls the kubelet for logs, exec and port-forward, and the kubelet asks the API server
# for authorization.
bind_kubelet_api() {
    kubectl apply --filename - >/dev/null <<'YAML'
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: vmop-cluster:apiserver-to-kubelet
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:kubelet-api-admin}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: kube-apiserver-kubelet-client}
YAML
}

start_controller_manager() {
    local config=$CERTS/kube-controller-manager.kubeconfig
    # The request rates suit the start of a hundred pods at a time. The grace period is short, because a test waits
    # until a lost node is detected. The kubelet reports every 5 s (nodeStatusUpdateFrequency, and a quarter of
    # nodeLeaseDurationSeconds), so that a busy machine has three more tries.
    spawn kube-controller-manager "$DIR/bin/vmop-kube" kube-controller-manager \
        --kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config" \
        --bind-address 127.0.0.1 --leader-elect=false --use-service-account-credentials \
        --root-ca-file "$CERTS/ca.crt" --service-account-private-key-file "$CERTS/service-account.key" \
        --cluster-signing-cert-file "$CERTS/ca.crt" --cluster-signing-key-file "$CERTS/ca.key" \
        --allocate-node-cidrs --cluster-cidr "$POD_CIDR" --service-cluster-ip-range "$SERVICE_CIDR" \
        --node-monitor-grace-period 20s --node-cidr-mask-size 22 --kube-api-qps 100 --kube-api-burst 200
}

start_scheduler() {
    local config=$CERTS/kube-scheduler.kubeconfig
    spawn kube-scheduler "$DIR/bin/vmop-kube" kube-scheduler \
        --kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config" \
        --bind-address 127.0.0.1 --leader-elect=false
}

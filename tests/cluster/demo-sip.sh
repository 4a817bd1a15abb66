# The demo of SIPClusters: three pods are the hosts, a load balancer leads to their ports 6443, and a jump host to their sshd.

SIP_HOSTS=(host-1 host-2 host-3)
SIP=tenant

make_for_sip() {
    title "prerequisites (existing ones are kept)"
    need_builders
    step "packages: from Debian, where missing" install_packages
    begin "programs: vm-operator and vm-runner" "$REPO/tests/run" --part programs
    begin "cluster: Kubernetes on this machine" start_cluster
    begin "layers: QEMU, HAProxy and OpenSSH from Debian's packages" "$HERE/images" packages
    finish programs
    begin "images: vm-operator, vm-load-balancer and vm-jump-host, $VERSION" "$HERE/images"
    finish
    step "load: these images into the cluster" "$HERE/cluster" load "$REPO"/.cache/images/vm-{operator,load-balancer,jump-host}.tar
}

# sip_host NAME: the manifest of a pod that answers /readyz on port 6443, as an API server does, and has sshd on port 22
sip_host() {
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata:
  name: $1
  labels: {app: sip-demo-host}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext:
    runAsNonRoot: true
    runAsUser: 65534
    seccompProfile: {type: RuntimeDefault}
    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "0"}]
  containers:
  - name: sshd
    image: localhost/vm-jump-host:$VERSION
    args: [-D, -e, -f, /etc/sip-demo/sshd_config]
    securityContext: {runAsUser: 1000, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts:
    - {name: configuration, mountPath: /etc/sip-demo, readOnly: true}
  - name: api-server
    image: localhost/vm-load-balancer:$VERSION
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts:
    - {name: configuration, mountPath: /usr/local/etc/haproxy, readOnly: true}
  volumes:
  - name: configuration
    secret: {secretName: sip-demo-host}
YAML
}

make_sip_hosts() {
    local folder=$LOGS/sip host key
    mkdir -p "$folder"
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=tenant -keyout "$folder/key.pem" -out "$folder/certificate.pem" 2>/dev/null
    cat "$folder/certificate.pem" "$folder/key.pem" >"$folder/both.pem"
    cat >"$folder/haproxy.cfg" <<'CFG'
defaults
  mode http
  timeout client 60s
  timeout server 10s
  timeout connect 10s
frontend api-server
  bind :6443 ssl crt /usr/local/etc/haproxy/both.pem
  http-request return status 200 content-type text/plain lf-string "ok from %H\n" if { path /readyz }
CFG
    for key in user colleague node host; do
        rm -f "$folder/$key" "$folder/$key.pub"
        ssh-keygen -q -t ed25519 -N '' -C "$key" -f "$folder/$key"
    done
    cat >"$folder/sshd_config" <<'CFG'
HostKey /etc/sip-demo/host
AuthorizedKeysFile /etc/sip-demo/node.pub
PidFile none
UsePAM no
StrictModes no
PrintLastLog no
CFG
    kubectl create secret generic sip-demo-host --namespace "$NAMESPACE" --dry-run=client --output yaml \
        --from-file "$folder/haproxy.cfg" --from-file "$folder/both.pem" --from-file "$folder/sshd_config" \
        --from-file "$folder/host" --from-file "$folder/node.pub" >"$folder/hosts.yaml"
    {
        echo ---
        kubectl create secret generic tenant-node-keys --namespace "$NAMESPACE" --dry-run=client --output yaml --from-file id_node="$folder/node"
    } >>"$folder/hosts.yaml"
    for host in "${SIP_HOSTS[@]}"; do sip_host "$host"; done >>"$folder/hosts.yaml"
    typed kubectl apply -n "$NAMESPACE" -f .cache/demo/sip/hosts.yaml
    typed kubectl wait -n "$NAMESPACE" --for condition=Ready pod --selector app=sip-demo-host --timeout 120s
}

# offer_sip_hosts: the BareMetalHosts of the pods, with the status that the baremetal-operator would write
offer_sip_hosts() {
    local host address available='{"status":{"provisioning":{"state":"available","ID":""},"operationalStatus":"OK","errorMessage":"","errorCount":0,"poweredOn":true,"provisioningFailCount":0}}'
    for host in "${SIP_HOSTS[@]}"; do
        address=$(kubectl get pod "$host" --namespace "$NAMESPACE" --output 'jsonpath={.status.podIP}')
        say "\$ sed 's/<HOST>/$host/;s/<ADDRESS>/$address/' examples/sip-host.yaml | kubectl apply -n $NAMESPACE -f -"
        sed "s/<HOST>/$host/;s/<ADDRESS>/$address/" "$REPO/examples/sip-host.yaml" | kubectl apply --namespace "$NAMESPACE" --filename -
    done
    for host in "${SIP_HOSTS[@]}"; do
        typed kubectl patch bmh "$host" -n "$NAMESPACE" --subresource status --type merge -p "$available"
    done
}

# await_sip NUMBER: waits until the cluster has that many hosts, and its services are ready
await_sip() {
    typed kubectl wait -n "$NAMESPACE" --for "jsonpath=.status.hosts.members=$1" "sip/$SIP" --timeout 60s
    typed kubectl wait -n "$NAMESPACE" --for condition=Ready "sip/$SIP" --timeout 120s
}

node_address() {
    kubectl get nodes --output 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}'
}

# sip_answers NUMBER: asks through the node port until that many hosts have answered
sip_answers() {
    local node from=$SECONDS hosts=''
    node=$(node_address)
    say "\$ curl --insecure https://$node:30643/readyz"
    until (($(wc -w <<<"$hosts") >= $1)); do
        # The node learns of new pods a moment later.
        hosts+=" $({ curl --silent --noproxy '*' --insecure --max-time 5 "https://$node:30643/readyz" || sleep 0.2; } | sed 's/ok from //')"
        hosts=$(tr ' ' '\n' <<<"$hosts" | sort --unique | tr '\n' ' ')
        ((SECONDS - from < 60)) || die "only these hosts have answered within 60 s: $hosts"
    done
    say "answers from: $hosts"
}

# jump KEY COMMAND...: runs the command at the jump host
jump() {
    local node
    node=$(node_address)
    typed ssh -i ".cache/demo/sip/$1" -F .cache/demo/sip/ssh_config -tt -p 30022 "ubuntu@$node" "${@:2}"
}

# open_jump_host: its private keys for the hosts are in the Secret tenant-node-keys, which make_sip_hosts has created. Its public key is in a Secret, so the first connection can be verified
open_jump_host() {
    local folder=$LOGS/sip key node from
    node=$(node_address)
    key=$(<"$folder/user.pub")
    say "\$ sed 's|<SSH-PUBLIC-KEY>|$key|' examples/sip-jump-host.yaml | kubectl apply -n $NAMESPACE -f -"
    sed "s|<SSH-PUBLIC-KEY>|$key|" "$REPO/examples/sip-jump-host.yaml" | kubectl apply --namespace "$NAMESPACE" --filename -
    await_sip 2
    from=$SECONDS
    kubectl get secret "jumphost-$SIP-host-key" --namespace "$NAMESPACE" --output 'jsonpath={.data.ssh_host_ed25519_key\.pub}' |
        base64 --decode | sed "s|^|[$node]:30022 |" >"$folder/known_hosts"
    printf '%s\n' "UserKnownHostsFile $folder/known_hosts" 'StrictHostKeyChecking yes' 'IdentitiesOnly yes' >"$folder/ssh_config"
    # The node learns of a new pod a moment later.
    until { : >"/dev/tcp/$node/30022"; } 2>/dev/null; do
        ((SECONDS - from < 30)) || die "nothing answers at the node port of the jump host"
        sleep 0.5
    done
}

# admit_colleague: waits until a second key opens the same pod
admit_colleague() {
    local from=$SECONDS pod=$1
    until jump colleague host list; do
        ((SECONDS - from < 100)) || die "the second key does not open the jump host within 100 s"
        sleep 5
    done
    [[ $(kubectl get pods --namespace "$NAMESPACE" --selector app.kubernetes.io/name=jumphost --output name) == "$pod" ]] ||
        die "the pod of the jump host was replaced"
}

# begin_connections: a client connects again and again in the background, until end_connections or the end of the demo
begin_connections() {
    local url
    url=https://$(node_address):30643/readyz
    rm -f "$LOGS/sip/enough"
    until [[ -e $LOGS/sip/enough ]] || ! kill -0 $$; do
        curl --silent --output /dev/null --write-out '%{http_code} %{errormsg}\n' --fail --noproxy '*' --insecure --max-time 5 "$url" || true
        sleep 0.05
    done >"$LOGS/sip/connections" 2>/dev/null </dev/null &
    CLIENT=$!
}

# end_connections: each of them got an answer
end_connections() {
    local failed
    touch "$LOGS/sip/enough"
    wait "$CLIENT"
    failed=$(grep --invert-match '^200' "$LOGS/sip/connections" || true)
    say "connections during these changes: $(wc -l <"$LOGS/sip/connections"), failed: $(grep --count . <<<"$failed" || true)"
    [[ -z $failed ]] || die "a connection has failed: $failed"
}

# hold_connection: a request in the background, which release_connection completes
hold_connection() {
    local address
    address=$(node_address):30643
    rm -f "$LOGS/sip/complete"
    {
        printf 'GET /readyz HTTP/1.1\r\nHost: tenant\r\nConnection: close\r\n'
        until [[ -e $LOGS/sip/complete ]] || ! kill -0 $$; do sleep 0.1; done
        printf '\r\n'
    } 2>/dev/null | openssl s_client -quiet -connect "$address" >"$LOGS/sip/held" 2>/dev/null &
    HELD=$!
}

release_connection() {
    touch "$LOGS/sip/complete"
    wait "$HELD" || true
    grep --quiet '^ok from' "$LOGS/sip/held" || die "the open connection has ended too early: $(<"$LOGS/sip/held")"
}

# await_rollout: all pods of the load balancer have the present configuration, and each previous one is ending
await_rollout() {
    typed kubectl rollout status -n "$NAMESPACE" "deployment/loadbalancer-controlplane-$SIP" --timeout 60s
}

# drain_node: only one of the two pods can be evicted, because its replacement has no other node
drain_node() {
    local node ready is_drained=
    node=$(kubectl get nodes --output 'jsonpath={.items[0].metadata.name}')
    typed kubectl drain "$node" --pod-selector "app.kubernetes.io/instance=loadbalancer-controlplane-$SIP" --timeout 8s 2>&1 |
        tee "$LOGS/sip/drain" && is_drained=yes
    ready=$(kubectl get deployment "loadbalancer-controlplane-$SIP" --namespace "$NAMESPACE" --output 'jsonpath={.status.readyReplicas}')
    typed kubectl uncordon "$node"
    [[ -z $is_drained ]] || die "both pods were evicted"
    grep --quiet "violate the pod's disruption budget" "$LOGS/sip/drain" || die "the PodDisruptionBudget did not reject the second eviction"
    [[ $ready == 1 ]] || die "$ready pods are ready after the drain, but one of two should have been evicted"
    await_rollout
}

# check_memory PROGRAM SERVICE MEBIBYTES: the resident set size of the program in each pod of the service
check_memory() {
    local uid entry program found=0
    for uid in $(kubectl get pods --namespace "$NAMESPACE" --selector "app.kubernetes.io/instance=$2-$SIP" --output 'jsonpath={.items[*].metadata.uid}'); do
        for entry in /proc/[0-9]*; do
            { read -r program <"$entry/comm"; } 2>/dev/null && [[ $program == "$1" ]] || continue
            grep --quiet "pod$uid" "$entry/cgroup" || continue
            found=1
            awk -v program="$1" -v limit="$3" '
                /^VmRSS:/ { printf "memory of %s: %.1f MiB, limit %d MiB\n", program, $2 / 1024, limit; exit ($2 > limit * 1024) }
                ' "$entry/status" || die "$1 uses too much memory"
        done
    done
    ((found)) || die "no pod of $2-$SIP has a process $1"
}

demo_sip() {
    local pod keys
    title "installation"
    kubectl get namespace "$NAMESPACE" >/dev/null 2>&1 || typed kubectl create namespace "$NAMESPACE"
    typed kubectl label namespace "$NAMESPACE" --overwrite pod-security.kubernetes.io/enforce=restricted
    typed kubectl apply -f crds/sip/
    typed kubectl apply -f tests/metal3/baremetalhosts.metal3.io.yaml
    typed kubectl wait --for condition=Established crd/sipclusters.airship.airshipit.org crd/baremetalhosts.metal3.io --timeout 30s
    typed kubectl apply -k deploy/overlays/sip-local
    typed kubectl rollout restart -n "$NAMESPACE" deployment/vm-operator-sip
    typed kubectl rollout status -n "$NAMESPACE" deployment/vm-operator-sip --timeout 120s

    title "three pods in place of hosts, and their BareMetalHosts"
    make_sip_hosts
    offer_sip_hosts

    title "two hosts for a tenant cluster, behind a node port"
    typed kubectl apply -n "$NAMESPACE" -f examples/sip.yaml
    await_sip 2
    typed kubectl get sip,bmh -n "$NAMESPACE" -L sip.airshipit.org/cluster-name -L sip.airshipit.org/node-type
    sip_answers 2

    title "a jump host"
    open_jump_host
    jump user host list
    jump user ssh -tt host-1 "'echo this is \$HOSTNAME'" | tee "$LOGS/sip/jumped"
    grep --quiet 'this is host-1' "$LOGS/sip/jumped" || die "the jump host does not lead to host-1"
    check_memory haproxy loadbalancer-controlplane 30
    check_memory sshd jumphost 10

    title "a second key for the jump host, which works within 90 s"
    pod=$(kubectl get pods --namespace "$NAMESPACE" --selector app.kubernetes.io/name=jumphost --output name)
    keys="[\"$(<"$LOGS/sip/user.pub")\", \"$(<"$LOGS/sip/colleague.pub")\"]"
    typed kubectl patch sip -n "$NAMESPACE" "$SIP" --type json -p '[{"op":"replace","path":"/spec/services/jumpHost/0/sshAuthorizedKeys","value":'"$keys"'}]'

    title "a third host"
    begin_connections
    typed kubectl patch sip -n "$NAMESPACE" "$SIP" --type merge -p '{"spec":{"nodes":{"ControlPlane":{"count":{"active":3}}}}}'
    await_sip 3
    typed kubectl get sip -n "$NAMESPACE"
    sip_answers 3

    title "a drain of the node, which evicts one pod of the load balancer"
    drain_node

    title "one host; the two others leave when no connection uses them"
    hold_connection
    sleep 1
    typed kubectl patch sip -n "$NAMESPACE" "$SIP" --type merge -p '{"spec":{"nodes":{"ControlPlane":{"count":{"active":1}}}}}'
    typed kubectl wait -n "$NAMESPACE" --for condition=Ready=False "sip/$SIP" --timeout 30s
    await_rollout
    # The previous pods accept no connection any more 5 s after the begin of their end.
    sleep 6
    [[ $(kubectl get bmh --namespace "$NAMESPACE" --selector "sip.airshipit.org/cluster-name=$SIP" --output name | wc -l) == 3 ]] ||
        die "a host has left while a connection was open"
    release_connection
    await_sip 1
    end_connections
    typed kubectl get bmh -n "$NAMESPACE" -L sip.airshipit.org/cluster-name
    typed kubectl get events -n "$NAMESPACE" --field-selector involvedObject.kind=SIPCluster
    sip_answers 1

    title "the second key and the only host, in the same pod of the jump host"
    admit_colleague "$pod"

    title "the end of the cluster"
    typed kubectl delete sip -n "$NAMESPACE" "$SIP"
    typed kubectl wait -n "$NAMESPACE" --for delete "deployment/loadbalancer-controlplane-$SIP" --timeout 60s
    typed kubectl wait -n "$NAMESPACE" --for delete services,configmaps,secrets,pdb --selector app.kubernetes.io/part-of=sip --timeout 60s
    typed kubectl get bmh -n "$NAMESPACE" -L sip.airshipit.org/cluster-name
    [[ -z $(kubectl get bmh --namespace "$NAMESPACE" --selector sip.airshipit.org/cluster-name --output name) ]] ||
        die "a host still has the labels of the cluster"
    [[ -z $(kubectl get deployments,services,configmaps,secrets,pdb --namespace "$NAMESPACE" --selector app.kubernetes.io/part-of=sip --output name) ]] ||
        die "an object of the cluster still exists"
}

remove_sip_demo() {
    typed kubectl delete sip -n "$NAMESPACE" "$SIP" --ignore-not-found
    typed kubectl delete -k deploy/overlays/sip-local --ignore-not-found
    typed kubectl delete -f crds/sip/ --ignore-not-found
    typed kubectl delete -f tests/metal3/baremetalhosts.metal3.io.yaml --ignore-not-found
    typed kubectl delete namespace "$NAMESPACE" --ignore-not-found
}

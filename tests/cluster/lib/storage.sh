# The default StorageClass and its provisioner.

start_storage() {
    kubectl apply --filename - >/dev/null <<'YAML'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: loop
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: vm-operator.test/loop
reclaimPolicy: Delete
volumeBindingMode: WaitForFirstConsumer
YAML
    spawn provisioner "$DIR/bin/vmop-kube" provisioner --kubeconfig "$DIR/admin.kubeconfig" \
        --directory "$DIR/volumes" --node "$NODE_NAME"
    wait_for 30 "the provisioner" grep --quiet "Started provisioner controller" "$DIR/logs/provisioner.log"
}

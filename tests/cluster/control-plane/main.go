// Command vmop-control-plane is the control plane of another Kubernetes version in one file. The first argument is the
// component. etcd and kubectl are those of the local cluster, see ../kube.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
	"kube-controller-manager": func() *cobra.Command { return controllermanager.NewControllerManagerCommand() },
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: vmop-control-plane kube-apiserver|kube-controller-manager|kube-scheduler ARGS...")
		os.Exit(2)
	}
	// The components read os.Args themselves and must find their own name first.
	os.Args = os.Args[1:]
	os.Exit(cli.Run(components[os.Args[0]]()))
}

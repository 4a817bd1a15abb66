// Command vmop-kube is a whole Kubernetes in one file: the first argument says
// which component to be. One binary instead of eight is one link step and one
// copy of client-go on the disk.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	_ "time/tzdata" // CronJobs with a time zone

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// components maps a name to the constructor of its own command. etcd and
// kubectl are not here: they bring their own way of running.
var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"provisioner":             newProvisionerCommand,
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: vmop-kube etcd|kubectl|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|provisioner ARGS...")
		os.Exit(2)
	}
	// The components read os.Args themselves and must find their own name first.
	os.Args = os.Args[1:]
	name := os.Args[0]
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kubectl":
		runKubectl()
	default:
		newCommand, known := components[name]
		if !known {
			fmt.Fprintf(os.Stderr, "vmop-kube: no component is called %q\n", name)
			os.Exit(2)
		}
		os.Exit(cli.Run(newCommand()))
	}
}

func runKubectl() {
	// kubectl logs while it builds its command, before the flags are parsed.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}

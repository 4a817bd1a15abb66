package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// provisionerName is what the StorageClass `loop` names as its provisioner.
const provisionerName = "vm-operator.test/loop"

// loopProvisioner answers claims from one directory of the node that it runs
// on. A Block claim becomes a sparse file behind a loop device, a Filesystem
// claim a directory. Both are `local` volumes, so the kubelet needs no driver.
type loopProvisioner struct {
	directory string
	node      string
}

func newProvisionerCommand() *cobra.Command {
	p := &loopProvisioner{}
	var kubeconfig string
	command := &cobra.Command{
		Use:   "provisioner",
		Short: "Dynamic `local` volumes from loop devices and directories",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return err
			}
			// A scale test makes dozens of claims at once; the client's default of
			// 5 requests per second would be the slowest part of it.
			config.QPS, config.Burst = 100, 200
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(p.directory, 0o755); err != nil {
				return err
			}
			controller.NewProvisionController(command.Context(), client, provisionerName, p,
				controller.LeaderElection(false),
			).Run(command.Context())
			return nil
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server")
	command.Flags().StringVar(&p.directory, "directory", "", "where the volumes' files and directories are")
	command.Flags().StringVar(&p.node, "node", "", "the node that the volumes belong to")
	return command
}

// SupportsBlock lets the controller pass Block claims on.
func (p *loopProvisioner) SupportsBlock(context.Context) bool { return true }

// Provision may be called again with the same name after a failure; what an
// earlier call has left is used, not made twice.
func (p *loopProvisioner) Provision(ctx context.Context, options controller.ProvisionOptions) (*core.PersistentVolume, controller.ProvisioningState, error) {
	finished := controller.ProvisioningFinished
	claim := options.PVC.Spec
	if claim.Selector != nil {
		return nil, finished, fmt.Errorf("a claim with a selector wants an existing volume; class %q makes new ones", options.StorageClass.Name)
	}
	size := claim.Resources.Requests[core.ResourceStorage]
	var path string
	var err error
	if claim.VolumeMode != nil && *claim.VolumeMode == core.PersistentVolumeBlock {
		path, err = p.attach(ctx, options.PVName, size.Value())
	} else {
		path = p.path(options.PVName)
		err = os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return nil, finished, err
	}
	return &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: options.PVName},
		Spec: core.PersistentVolumeSpec{
			Capacity:                      core.ResourceList{core.ResourceStorage: size},
			AccessModes:                   claim.AccessModes,
			VolumeMode:                    claim.VolumeMode,
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			PersistentVolumeSource:        core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: path}},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{{
				MatchExpressions: []core.NodeSelectorRequirement{{
					Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: []string{p.node},
				}},
			}}}},
		},
	}, finished, nil
}

// Delete takes its paths from the volume's name, never from its spec: whoever
// may write a PersistentVolume must not be able to name a file to remove.
func (p *loopProvisioner) Delete(ctx context.Context, volume *core.PersistentVolume) error {
	image := p.image(volume.Name)
	devices, err := attached(ctx, image)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := run(ctx, "losetup", "--detach", device); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(image); err != nil {
		return err
	}
	return os.RemoveAll(p.path(volume.Name))
}

func (p *loopProvisioner) path(volume string) string { return filepath.Join(p.directory, volume) }

func (p *loopProvisioner) image(volume string) string { return p.path(volume) + ".img" }

// attach returns the loop device of the volume's file, which it makes if need
// be.
func (p *loopProvisioner) attach(ctx context.Context, volume string, bytes int64) (string, error) {
	image := p.image(volume)
	file, err := os.OpenFile(image, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	// A block device has whole sectors; the claim must not get less than it asked for.
	if err := file.Truncate((bytes + 511) / 512 * 512); err != nil {
		return "", err
	}
	devices, err := attached(ctx, image)
	if err != nil {
		return "", err
	}
	if len(devices) > 0 {
		return devices[0], nil
	}
	return output(ctx, "losetup", "--find", "--show", image)
}

// attached lists the loop devices behind which a file is.
func attached(ctx context.Context, image string) ([]string, error) {
	out, err := output(ctx, "losetup", "--noheadings", "--output", "NAME", "--associated", image)
	return strings.Fields(out), err
}

func run(ctx context.Context, name string, args ...string) error {
	_, err := output(ctx, name, args...)
	return err
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return text, nil
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"gopkg.in/yaml.v3"
)

// monitor is the part of a PodMonitor that these PodMonitors use. Other fields are an error.
type monitor struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		// The test gives the targets.
		NamespaceSelector struct {
			Any        bool     `yaml:"any"`
			MatchNames []string `yaml:"matchNames"`
		} `yaml:"namespaceSelector"`
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		SampleLimit         int        `yaml:"sampleLimit"`
		PodMetricsEndpoints []endpoint `yaml:"podMetricsEndpoints"`
	} `yaml:"spec"`
}

type endpoint struct {
	Port              string       `yaml:"port"`
	Path              string       `yaml:"path"`
	Interval          string       `yaml:"interval"`
	Relabelings       []relabeling `yaml:"relabelings"`
	MetricRelabelings []relabeling `yaml:"metricRelabelings"`
}

type relabeling struct {
	Action       string   `yaml:"action"`
	SourceLabels []string `yaml:"sourceLabels"`
	Regex        string   `yaml:"regex"`
	TargetLabel  string   `yaml:"targetLabel"`
}

// readMonitors returns the PodMonitors by name.
func readMonitors(path string) (map[string]monitor, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	monitors := map[string]monitor{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	for {
		var one monitor
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return monitors, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(one.Spec.PodMetricsEndpoints) != 1 {
			return nil, fmt.Errorf("%s: %s: one endpoint expected", path, one.Metadata.Name)
		}
		monitors[one.Metadata.Name] = one
	}
}

// configuration is the relabeling in the syntax of Prometheus.
func configuration(relabelings []relabeling) []map[string]any {
	var all []map[string]any
	for _, one := range relabelings {
		entry := map[string]any{}
		if one.Action != "" {
			entry["action"] = one.Action
		}
		if one.SourceLabels != nil {
			entry["source_labels"] = one.SourceLabels
		}
		if one.Regex != "" {
			entry["regex"] = one.Regex
		}
		if one.TargetLabel != "" {
			entry["target_label"] = one.TargetLabel
		}
		all = append(all, entry)
	}
	return all
}

// scrapeConfig is the configuration that the Prometheus operator would generate for a pod with these labels.
func (m monitor) scrapeConfig(address, path, pod string, vm target) map[string]any {
	endpoint := m.Spec.PodMetricsEndpoints[0]
	labels := map[string]string{
		"namespace":                       vm.namespace,
		"pod":                             pod,
		"__meta_kubernetes_pod_node_name": vm.node,
		"__meta_kubernetes_pod_label_app_kubernetes_io_instance": vm.vm,
		"__meta_kubernetes_pod_label_app_kubernetes_io_name":     m.Spec.Selector.MatchLabels["app.kubernetes.io/name"],
	}
	return map[string]any{
		"job_name":               vm.namespace + "/" + m.Metadata.Name,
		"scrape_interval":        "1s",
		"scrape_timeout":         "1s",
		"metrics_path":           path,
		"honor_labels":           false,
		"sample_limit":           m.Spec.SampleLimit,
		"static_configs":         []any{map[string]any{"targets": []string{address}, "labels": labels}},
		"relabel_configs":        configuration(endpoint.Relabelings),
		"metric_relabel_configs": configuration(endpoint.MetricRelabelings),
	}
}

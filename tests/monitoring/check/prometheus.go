package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// prometheusServer is a running Prometheus that scrapes the recorded files.
type prometheusServer struct {
	address string
	folder  string
	process *exec.Cmd
}

// sample is a series of an answer.
type sample struct {
	Metric map[string]string `json:"metric"`
}

// forged are samples that a taken-over runner could add.
const forged = `vm_operator_leader{namespace="other"} 1
kubevirt_vmi_memory_domain_bytes{namespace="other",name="victim",node="elsewhere"} 1
`

// serveScrapes serves the recorded files on a free port of the loopback interface.
func serveScrapes(scrapes string) (string, error) {
	operator, err := os.ReadFile(filepath.Join(scrapes, "operator.prom"))
	if err != nil {
		return "", err
	}
	runner, err := os.ReadFile(filepath.Join(scrapes, "runner.prom"))
	if err != nil {
		return "", err
	}
	respond := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write([]byte(text))
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/operator", respond("application/openmetrics-text; version=1.0.0", string(operator)))
	mux.HandleFunc("/runner", respond("text/plain; version=0.0.4", string(runner)))
	mux.HandleFunc("/forged", respond("text/plain; version=0.0.4", forged))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = http.Serve(listener, mux) }()
	return listener.Addr().String(), nil
}

func startPrometheus(program, scrapes, rules string, monitors map[string]monitor, vm target) (*prometheusServer, error) {
	scraped, err := serveScrapes(scrapes)
	if err != nil {
		return nil, err
	}
	taken := target{namespace: vm.namespace, vm: "taken-over", node: vm.node}
	// An operator with another namespace in its configuration.
	remote := target{namespace: "operators"}
	jobs := []map[string]any{
		monitors["vm-operator"].scrapeConfig(scraped, "/operator", "vm-operator-1", vm),
		monitors["vm-runner"].scrapeConfig(scraped, "/runner", vm.vm, vm),
		monitors["vm-runner"].scrapeConfig(scraped, "/forged", taken.vm, taken),
		monitors["vm-operator"].scrapeConfig(scraped, "/operator", "vm-operator-2", remote),
	}
	jobs[2]["job_name"] = "forged"
	folder, err := os.MkdirTemp("", "vmop-prometheus-")
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"global":         map[string]string{"evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": jobs,
	})
	if err != nil {
		return nil, err
	}
	// YAML contains JSON.
	file := filepath.Join(folder, "prometheus.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	process := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		return nil, err
	}
	return &prometheusServer{address: address, folder: folder, process: process}, nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func (p *prometheusServer) stop() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
	_ = os.RemoveAll(p.folder)
}

// get decodes the data of an answer.
func (p *prometheusServer) get(path string, data any) error {
	answer, err := http.Get("http://" + p.address + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body := struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return err
	}
	if body.Status != "success" {
		return fmt.Errorf("%s", body.Error)
	}
	return nil
}

func (p *prometheusServer) query(expr string) ([]sample, error) {
	var data struct {
		Result []sample `json:"result"`
	}
	err := p.get("/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result, err
}

// waitForSamples waits until rates have three samples of each target.
func (p *prometheusServer) waitForSamples() error {
	for _, expr := range []string{
		"count_over_time(vm_operator_leader[1m]) > 3",
		"count_over_time(vmoperator_qemu_answers[1m]) > 3",
		`count_over_time(kubevirt_vmi_memory_domain_bytes{name="taken-over"}[1m]) > 3`,
	} {
		err := eventually(expr, func() bool {
			found, err := p.query(expr)
			return err == nil && len(found) > 0
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkQueries returns the queries without a series.
func (p *prometheusServer) checkQueries(queries []query, vm target) []string {
	values := strings.NewReplacer("$__rate_interval", "30s", "$namespace", vm.namespace, "$vm", vm.vm)
	var failures []string
	for _, one := range queries {
		expr := values.Replace(one.expr)
		found, err := p.query(expr)
		switch {
		case err != nil:
			failures = append(failures, fmt.Sprintf("%s: %s: %v", one.place, expr, err))
		case len(found) == 0:
			failures = append(failures, fmt.Sprintf("%s: no series: %s", one.place, expr))
		case one.label != "" && found[0].Metric[one.label] == "":
			failures = append(failures, fmt.Sprintf("%s: no label %s", one.place, one.label))
		}
	}
	return failures
}

// checkLabels returns the series with labels that come from a sample although the target has them.
func (p *prometheusServer) checkLabels(vm target) []string {
	var failures []string
	expect := func(expr string, wanted int) {
		found, err := p.query(expr)
		if err != nil || len(found) != wanted {
			failures = append(failures, fmt.Sprintf("%d series expected for %s, %d found: %v", wanted, expr, len(found), err))
		}
	}
	own := vm.namespace
	expect(`{namespace!="`+own+`", __name__=~"vm_operator_vm_.+|vmoperator_.+|kubevirt_.+", __name__!~"vm_operator_vm_start.+"}`, 0)
	expect(`{__name__=~".+", exported_namespace!=""}`, 0)
	expect(`{__name__=~".+", exported_name!=""}`, 0)
	expect(`vm_operator_leader`, 2)
	expect(`vm_operator_leader{deployment="vm-operator"}`, 2)
	expect(`vm_operator_vm_info{namespace="`+own+`", pod="vm-operator-2"}`, 1)
	expect(`kubevirt_vmi_memory_domain_bytes{name="taken-over", node="`+vm.node+`"}`, 1)
	expect(`kubevirt_vmi_memory_domain_bytes{name="victim"}`, 0)
	return failures
}

// checkAlerts waits for the alerts about the problems of the recorded VM. They name the VM.
func (p *prometheusServer) checkAlerts(vm target) []string {
	var failures []string
	for name, state := range map[string]string{
		"VmStorageUnhealthy": "firing", "VmUnresponsive": "firing", "VmEmulated": "pending", "VmNotRunning": "pending",
	} {
		expr := fmt.Sprintf(`ALERTS{alertname=%q, alertstate=%q, namespace=%q, name=%q}`, name, state, vm.namespace, vm.vm)
		err := eventually(expr, func() bool {
			found, err := p.query(expr)
			return err == nil && len(found) == 1
		})
		if err != nil {
			failures = append(failures, err.Error())
		}
	}
	return failures
}

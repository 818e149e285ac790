package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMetricsAddress(t *testing.T) {
	for text, want := range map[string]string{
		"9100": "127.0.0.1:9100", ":9100": "127.0.0.1:9100", "0": "127.0.0.1:0", "0.0.0.0:9100": "0.0.0.0:9100", "[::1]:9100": "[::1]:9100",
		"localhost:0": "localhost:0",
	} {
		var a metricsAddress
		if err := a.Set(text); err != nil || a.String() != want {
			t.Errorf("%q: %q, %v, want %q", text, a, err, want)
		}
	}
	for _, text := range []string{"", "host", "host:", "host:http", ":65536", "-1", "1:2:3", "127.0.0.1", "http://localhost:9100"} {
		var a metricsAddress
		if err := a.Set(text); err == nil {
			t.Errorf("%q was taken for %q", text, a)
		}
	}
}

var metricsLine = regexp.MustCompile(`metrics at (http://127\.0\.0\.1:[0-9]+)/metrics`)

// served is a command that serves metrics.
type served struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	stderr bytes.Buffer  // complete when it has ended
	read   chan struct{} // closed then
}

func serve(t *testing.T, args ...string) *served {
	t.Helper()
	s := &served{t: t, cmd: coli(t, args...), read: make(chan struct{})}
	pipe, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := make(chan string, 1)
	go func() {
		defer close(s.read)
		defer close(url)
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			s.stderr.WriteString(lines.Text() + "\n")
			if m := metricsLine.FindStringSubmatch(lines.Text()); m != nil {
				url <- m[1]
			}
		}
	}()
	if s.url = <-url; s.url == "" {
		t.Fatalf("it does not say where the metrics are: %s", s.stderr.String())
	}
	return s
}

// get asks for a page; it is "" if there is nobody.
func (s *served) get(path string) string {
	r, err := http.Get(s.url + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return r.Status
	}
	return string(body)
}

// until asks for metrics until one of them is positive.
func (s *served) until(metric string) {
	s.t.Helper()
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(metric) + ` (.*)$`)
	var body string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		body = s.get("/metrics")
		if m := line.FindStringSubmatch(body); m != nil {
			if v, err := strconv.ParseFloat(m[1], 64); err == nil && v > 0 {
				return
			}
		}
	}
	s.t.Fatalf("no %s in\n%s", metric, body)
}

// ended waits for the command's end and returns its exit code.
func (s *served) ended() int {
	s.t.Helper()
	<-s.read
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://")); err == nil {
		c.Close()
		s.t.Error("somebody still listens")
	}
	return s.cmd.ProcessState.ExitCode()
}

// TestMetricsOfAnAnswer: a model that streams is looked at while it answers, and then interrupted.
func TestMetricsOfAnAnswer(t *testing.T) {
	s := serve(t, "run", "--raw", "--ram", "1152KiB", "--metrics", "0", "--temp", "0", "Once upon a time")
	s.until(`coli_prefetcher_read_bytes_total`)
	s.until(`coli_actor_mailbox_wait_seconds_count{actor="tier"}`)
	s.until(`coli_tier_pairs_total{where="disk"}`)
	for path, want := range map[string]string{"/": `<a href="/metrics">`, "/metrics/x": "404", "/x": "404"} {
		if got := s.get(path); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q in it", path, got, want)
		}
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.ended(); code != exitInterrupted && code != 0 { // it may have come to its end before
		t.Errorf("exit code %d, stderr %s", code, s.stderr.String())
	}
}

// TestMetricsOfExperiments: what is served is the model of the arm that is measured.
func TestMetricsOfExperiments(t *testing.T) {
	s := serve(t, "bench", "decode", "--metrics", ":0", "-n", "8", "-r", "2", "-t", "1,2")
	s.until(`coli_tokens_total{phase="decode"}`)
	s.until(`coli_actor_handle_seconds_count{actor="tier"}`)
	if code := s.ended(); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, s.stderr.String())
	}
}

func TestMetricsAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, args := range [][]string{{"run", "-m", "/no/model", "Hello"}, {"bench", "decode"}} {
		cmd := coli(t, append(args, "--metrics", l.Addr().String())...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		cmd.Run() //nolint:errcheck // the code is looked at
		if code, want := cmd.ProcessState.ExitCode(), "coli: --metrics "+l.Addr().String()+": the address is in use; "; code != exitFailed || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, stderr %q, want 1 and %q", args[0], code, stderr.String(), want)
		}
	}
}

// Handler prepares this VM for its scheduled events, approves them, and recovers when they are over:
//
//	handler 'systemctl stop my-app' 'systemctl start my-app'
//
// Both commands must be harmless when they run twice. A command that fails is repeated, and nothing is approved before
// the first one has succeeded. State is kept in $STATE_DIRECTORY (systemd: StateDirectory=), which must survive a reboot.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	pollInterval   = time.Second
	timeLimit      = 10 * time.Second // of a request; the service promises an answer within ten seconds
	maxAnswerBytes = 64 << 20
	pollsUntilOver = 3 // a document may be older than the one before it
)

type event struct {
	ID        string `json:"EventId"`
	Status    string `json:"EventStatus"`
	Kind      string `json:"EventType"`
	Resources []string
}

// isDisruptive reports whether work is lost unless it is saved. A freeze pauses the VM for seconds and loses nothing.
func (e event) isDisruptive() bool {
	switch e.Kind {
	case "Reboot", "Redeploy", "Preempt", "Terminate":
		return true
	}
	return false
}

// state is what must survive a restart, and the file that keeps it.
type state struct {
	PrepareBegun bool            // the VM is prepared, at least in part, and must be recovered later
	Prepared     map[string]bool // ids of events for which the VM is prepared
	Boot         string          // the boot id
	file         string
}

func readState(file, boot string) *state {
	s := &state{}
	if text, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(text, s) // a file that cannot be read is as good as none
	}
	if s.Boot != boot || s.Prepared == nil {
		s.Prepared = map[string]bool{} // what was prepared before a reboot is prepared again
	}
	s.Boot, s.file = boot, file
	return s
}

func (s *state) save() {
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(s.file+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(s.file+".new", s.file)
	}
	if err != nil {
		log.Printf("the state is not saved: %v", err) // a full disk must not stop the polls
	}
}

type handler struct {
	prepareCommand, recoverCommand string
	metadata                       string // the URL of the metadata service
	client                         *http.Client
	state                          *state
	me                             string          // the name of this VM
	approved                       map[string]bool // not kept over a restart: approving twice is harmless
	pollsWithoutEvents             int
	finished                       chan func() // changes the state after a command; nil while none is running
}

// request returns the body of an answer, or an error unless that is a 200 within the time limit.
func (h *handler) request(method, path, body string) ([]byte, error) {
	request, err := http.NewRequest(method, h.metadata+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Metadata", "true")
	response, err := h.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", path, response.Status)
	}
	return text, err
}

// ownEvents returns the events that list this VM. An answer that is not a document is an error: it says nothing.
func (h *handler) ownEvents() ([]event, error) {
	if h.me == "" { // the host name is not the VM's name in a scale set, so the service is asked
		name, err := h.request("GET", "/instance/compute/name?api-version=2021-02-01&format=text", "")
		if err != nil {
			return nil, err
		}
		h.me = strings.TrimSpace(string(name))
	}
	text, err := h.request("GET", "/scheduledevents?api-version=2020-07-01", "")
	if err != nil {
		return nil, err
	}
	var document struct{ Events *[]json.RawMessage }
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	if document.Events == nil {
		return nil, errors.New("the answer is not a document")
	}
	var own []event
	for _, element := range *document.Events {
		var e event
		if json.Unmarshal(element, &e) != nil {
			continue // one unusable event must not hide the others
		}
		for _, name := range e.Resources {
			if strings.EqualFold(name, h.me) {
				own = append(own, e)
				break
			}
		}
	}
	return own, nil
}

func (h *handler) approve(id string) error {
	body, err := json.Marshal(map[string]any{"StartRequests": []any{map[string]string{"EventId": id}}})
	if err != nil {
		return err
	}
	if _, err := h.request("POST", "/scheduledevents?api-version=2020-07-01", string(body)); err != nil {
		return err
	}
	h.approved[id] = true
	log.Printf("approved %s", id)
	return nil
}

// run runs a command beside the polls, and then changes the state. If the command fails the state stays as it is, and
// the command is repeated.
func (h *handler) run(command string, change func()) {
	finished := make(chan func(), 1)
	h.finished = finished
	go func() {
		process := exec.Command("sh", "-c", command)
		process.Stdout, process.Stderr = os.Stdout, os.Stderr
		if err := process.Run(); err != nil {
			log.Printf("%s failed: %v", command, err)
			change = func() {}
		}
		finished <- change
	}()
}

func (h *handler) takeResult() {
	select {
	case change := <-h.finished: // never, if no command was started
		h.finished = nil
		change()
		h.state.save()
	default:
	}
}

func (h *handler) prepareFor(ids []string) {
	log.Printf("preparing for %s", strings.Join(ids, " "))
	h.state.PrepareBegun = true
	h.state.save()
	h.run(h.prepareCommand, func() {
		for _, id := range ids {
			h.state.Prepared[id] = true
		}
	})
}

func (h *handler) recover() {
	log.Print("recovering")
	h.run(h.recoverCommand, func() {
		h.state.PrepareBegun, h.state.Prepared = false, map[string]bool{}
	})
}

func (h *handler) poll() error {
	own, err := h.ownEvents()
	if err != nil {
		return err
	}
	h.takeResult()
	if len(own) == 0 {
		h.approved = map[string]bool{}
	}
	var due []string
	h.pollsWithoutEvents++
	for _, e := range own {
		if e.isDisruptive() {
			h.pollsWithoutEvents = 0
			if e.Status == "Scheduled" && !h.state.Prepared[e.ID] { // once Started, it is too late to prepare
				due = append(due, e.ID)
			}
		}
	}
	if h.finished == nil && len(due) > 0 {
		h.prepareFor(due)
	} else if h.finished == nil && h.state.PrepareBegun && h.pollsWithoutEvents >= pollsUntilOver {
		h.recover()
	}
	for _, e := range own {
		// A freeze needs no preparation. Approving an eviction would only give time away.
		isReady := e.Kind == "Freeze" || h.state.Prepared[e.ID]
		if isReady && e.Status == "Scheduled" && e.Kind != "Preempt" && !h.approved[e.ID] {
			if err := h.approve(e.ID); err != nil {
				return err // it is repeated at the next poll
			}
		}
	}
	return nil
}

// environment returns a variable, or a default if it is empty.
func environment(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: handler PREPARE RECOVER")
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		log.Fatal(err)
	}
	h := &handler{
		prepareCommand: os.Args[1],
		recoverCommand: os.Args[2],
		metadata:       environment("FOREWARN_ENDPOINT", "http://169.254.169.254") + "/metadata",
		client: &http.Client{
			Timeout:   timeLimit,
			Transport: &http.Transport{}, // without the proxies of the environment
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
		state:    readState(filepath.Join(environment("STATE_DIRECTORY", "."), "handler-state.json"), string(boot)),
		approved: map[string]bool{},
	}
	for {
		if err := h.poll(); err != nil {
			log.Print(err) // no answer may end the polls
		}
		time.Sleep(pollInterval)
	}
}

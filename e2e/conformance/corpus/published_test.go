package corpus

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/shoenig/test/must"
)

var (
	usesDocker = regexp.MustCompile(`(?i)driver"?\s*[=:]\s*"docker"`)
	fence      = regexp.MustCompile("(?ms)^[ \t]*```[^\n]*\n(.*?)^[ \t]*```")
	// ellipsis is a line that stands for left out text.
	ellipsis = regexp.MustCompile(`(?m)^\s*(#\s*)?\.\.\.\s*$`)
	// readsFile is a call of a function that reads a file of the author.
	readsFile = regexp.MustCompile(`\b(?:file|filebase64)\((?:[^()]|\([^()]*\))*\)`)
	// variable is a declaration. Values are given for those without a default.
	variable = regexp.MustCompile(`(?m)^variable "([^"]+)"`)
)

// source is the text of one published job, or of a part of one.
type source struct {
	// name is the path of its file, with its number among the code blocks of a page.
	name, text string
}

// published returns the texts below a directory that use the docker driver.
func published(t *testing.T, root string) []source {
	var all []source
	must.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		must.NoError(t, err)
		read := func() string {
			text, err := os.ReadFile(path)
			must.NoError(t, err)
			return string(text)
		}
		switch filepath.Ext(name) {
		case ".nomad", ".hcl", ".json":
			// The last ones are jobs that a test cannot parse, and mocked answers of the web interface.
			if text := read(); usesDocker.MatchString(text) && !strings.HasPrefix(name, "ui/") {
				all = append(all, source{name, text})
			}
		case ".mdx":
			for number, block := range fence.FindAllStringSubmatch(read(), -1) {
				isOption := strings.HasSuffix(name, "job-declare/task-driver/docker.mdx") &&
					strings.HasPrefix(strings.TrimSpace(block[1]), "config {")
				if isOption || strings.Contains(block[1], `= "docker"`) && usesDocker.MatchString(block[1]) {
					all = append(all, source{fmt.Sprintf("%s#%d", name, number+1), block[1]})
				}
			}
		}
		return nil
	}))
	return all
}

// parse reads a job, or a part of a job as the documentation shows it.
func parse(text source) (*api.Job, error) {
	if strings.HasSuffix(text.name, ".json") {
		var outer struct{ Job *api.Job }
		err := json.Unmarshal([]byte(text.text), &outer)
		if err == nil && outer.Job == nil {
			err = fmt.Errorf("no job")
		}
		return outer.Job, err
	}
	body := ellipsis.ReplaceAllString(readsFile.ReplaceAllString(text.text, `"x"`), "")
	job, err := parseText(body)
	for _, outer := range []string{
		"job \"part\" {\n%s\n}",
		"job \"part\" {\ngroup \"part\" {\n%s\n}\n}",
		"job \"part\" {\ngroup \"part\" {\ntask \"part\" {\ndriver = \"docker\"\n%s\n}\n}\n}",
	} {
		if err == nil {
			break
		}
		whole := strings.Replace(fmt.Sprintf(outer, body), "\ngroup {", "\ngroup \"part\" {", 1)
		if inner, innerErr := parseText(whole); innerErr == nil {
			job, err = inner, nil
		}
	}
	return job, err
}

func parseText(text string) (*api.Job, error) {
	var given []string
	for _, match := range variable.FindAllStringSubmatchIndex(text, -1) {
		declaration := text[match[0]:]
		if line, _, _ := strings.Cut(declaration, "\n"); strings.HasSuffix(line, "}") {
			declaration = line
		} else if end := strings.Index(declaration, "\n}"); end >= 0 {
			declaration = declaration[:end]
		}
		if !strings.Contains(declaration, "default") {
			given = append(given, text[match[2]:match[3]]+"="+valueFor(declaration))
		}
	}
	return jobspec2.ParseWithConfig(&jobspec2.ParseConfig{
		Path: "job.hcl", Body: []byte(text), ArgVars: given, AllowFS: false, Strict: true,
	})
}

// valueFor is a value that fits the type in a variable's declaration.
func valueFor(declaration string) string {
	switch {
	case strings.Contains(declaration, "list("):
		return `["1"]`
	case strings.Contains(declaration, "map("):
		return `{}`
	case strings.Contains(declaration, "string"):
		return "/1"
	default:
		return "1"
	}
}

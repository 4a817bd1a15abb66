package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// query is a query of a dashboard, with its place for messages.
type query struct {
	place string
	expr  string
	// label is the label that a variable takes its values from.
	label string
}

// dashboardQueries decodes all dashboards strictly and returns the queries of their panels and variables.
func dashboardQueries(deploy string) ([]query, error) {
	plugins.RegisterDefaultPlugins()
	files, err := filepath.Glob(filepath.Join(deploy, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) != 3 {
		return nil, fmt.Errorf("three dashboards expected: %v", files)
	}
	var queries []query
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found, err := queriesOf(filepath.Base(file), text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		queries = append(queries, found...)
	}
	return queries, nil
}

func queriesOf(file string, text []byte) ([]query, error) {
	// For a correct dashboard, the strict function returns an empty list of errors, and no panels.
	var wrong cog.BuildErrors
	strict := (&dashboard.Dashboard{}).UnmarshalJSONStrict(text)
	if strict != nil && (!errors.As(strict, &wrong) || len(wrong) > 0) {
		return nil, strict
	}
	var board dashboard.Dashboard
	if err := json.Unmarshal(text, &board); err != nil {
		return nil, err
	}
	var queries []query
	panels := 0
	for _, entry := range board.Panels {
		if entry.Panel == nil {
			continue
		}
		panels++
		panel := entry.Panel
		if panel.Description == nil || *panel.Description == "" {
			return nil, fmt.Errorf("panel %q has no description", *panel.Title)
		}
		for _, one := range panel.Targets {
			asked, is := one.(*prometheus.Dataquery)
			if !is {
				if value, isValue := one.(prometheus.Dataquery); isValue {
					asked = &value
				} else {
					return nil, fmt.Errorf("panel %q has a query for another source: %T", *panel.Title, one)
				}
			}
			queries = append(queries, query{place: file + ": " + *panel.Title, expr: asked.Expr})
		}
	}
	if panels < 5 {
		return nil, fmt.Errorf("only %d panels", panels)
	}
	for _, variable := range board.Templating.List {
		if variable.Definition != nil {
			one, err := variableQuery(file, variable.Name, *variable.Definition)
			if err != nil {
				return nil, err
			}
			queries = append(queries, one)
		}
	}
	return queries, nil
}

// variableQuery parses label_values(SELECTOR, LABEL).
func variableQuery(file, name, definition string) (query, error) {
	inner, found := strings.CutPrefix(definition, "label_values(")
	inner, closed := strings.CutSuffix(inner, ")")
	comma := strings.LastIndex(inner, ", ")
	if !found || !closed || comma < 0 {
		encoded, _ := json.Marshal(definition)
		return query{}, fmt.Errorf("variable %s: not label_values(SELECTOR, LABEL): %s", name, encoded)
	}
	return query{place: file + ": variable " + name, expr: inner[:comma], label: inner[comma+2:]}, nil
}

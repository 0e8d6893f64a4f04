{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The cluster file as JSON. A file that isn't TOML is refused. */}}
{{- define "wirepaxos.cluster" -}}
{{- $cluster := fromToml .Values.clusterFile -}}
{{- if or (hasKey $cluster "Error") (not $cluster.node) -}}
{{- fail "clusterFile is no cluster file: --set-file clusterFile=wirepaxos-cluster/cluster.toml, as `wirepaxos init` wrote it" -}}
{{- end -}}
{{- if and $cluster.auth (not .Values.nodesKey) -}}
{{- fail "the cluster file demands signed packets: --set-file nodesKey=wirepaxos-cluster/nodes.key" -}}
{{- end -}}
{{- toJson $cluster -}}
{{- end -}}

{{/* The host of an address such as 10.0.0.1:7000 or [fd00::1]:7000. */}}
{{- define "wirepaxos.host" -}}
{{- regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
{{- end -}}

{{- define "wirepaxos.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* The Kubernetes nodes' host names, by their addresses, as JSON. */}}
{{- define "wirepaxos.machines" -}}
{{- $machines := dict -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $name := index .metadata.labels "kubernetes.io/hostname" | default .metadata.name -}}
{{- range .status.addresses -}}
{{- if has .type (list "InternalIP" "ExternalIP") -}}
{{- $_ := set $machines .address $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (merge (deepCopy .Values.machines) $machines) -}}
{{- end -}}

{{- define "wirepaxos.labels" -}}
app.kubernetes.io/name: wirepaxos
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wirepaxos.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

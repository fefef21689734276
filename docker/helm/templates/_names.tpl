{{- define "hearth.labels" -}}
app.kubernetes.io/name: hearth
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "hearth.metadata" -}}
name: {{ .root.Release.Name }}-{{ .name | default .component }}
labels:
  {{- include "hearth.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* The image of a role: by its digest if there is one. */}}
{{- define "hearth.image" -}}
{{- $name := printf "hearth-%s" .image -}}
{{- $digest := get .root.Values.images.digests $name -}}
{{- if $digest -}}
{{ .root.Values.images.prefix }}{{ $name }}@{{ $digest }}
{{- else -}}
{{ .root.Values.images.prefix }}{{ $name }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

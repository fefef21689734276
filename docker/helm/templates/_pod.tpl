{{/* What every pod has. */}}
{{- define "hearth.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
# The first process of the pod takes the zombies of processes whose parents died.
shareProcessNamespace: true
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "hearth.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "hearth.labels" . | nindent 8 }}
{{- end }}

{{/* What every container has. */}}
{{- define "hearth.container" -}}
image: {{ include "hearth.image" . }}
imagePullPolicy: {{ .root.Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "hearth.mounts" -}}
- {name: data, mountPath: /var/lib/hearth}
- {name: run, mountPath: /run/hearth}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/hearth}
{{- include "hearth.trusted-mount" . }}
{{- end }}

{{/* A node keeps all of it on one volume: models and engines would be fetched again at each start. */}}
{{- define "hearth.node-mounts" -}}
- {name: data, mountPath: /var/lib/hearth, subPath: hearth}
- {name: data, mountPath: /var/lib/hearth-engine, subPath: engine}
- {name: data, mountPath: /var/cache/hearth, subPath: cache}
- {name: run, mountPath: /run/hearth}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
{{- include "hearth.trusted-mount" . }}
{{- end }}

{{/* The certificates of authorities that connections to other servers trust. */}}
{{- define "hearth.trusted-mount" -}}
{{- with .root.Values.trustedCertificates }}
{{- if or .configMap .secret }}
- {name: trusted-certificates, mountPath: /etc/hearth-certificates, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "hearth.scratch" -}}
- {name: run, emptyDir: {}}
- {name: tmp, emptyDir: {}}
- {name: cache, emptyDir: {}}
{{- end }}

{{- define "hearth.environment" -}}
- name: HEARTH_NODE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
# A folder of the volume, so that it belongs to this user alone.
- {name: HEARTH_DATA_DIR, value: /var/lib/hearth/data}
{{- range $name, $value := .root.Values.environment }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- with .root.Values.trustedCertificates }}
{{- if or .configMap .secret }}
{{- range $name := list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" }}
- {name: {{ $name }}, value: /etc/hearth-certificates/ca-bundle.pem}
{{- end }}
{{- end }}
{{- end }}
{{- with .root.Values.ingress }}
{{- if .enabled }}
- {name: HEARTH_ALLOWED_HOSTS, value: {{ .host | quote }}}
- {name: HEARTH_TLS_PROXY, value: {{ ternary "1" "0" (ne .tlsSecret "") | quote }}}
{{- $address := printf "%s://%s" (ternary "https" "http" (ne .tlsSecret "")) .host }}
- {name: HEARTH_API_URL, value: {{ $address | quote }}}
- {name: HEARTH_PORTAL_URL, value: {{ $address | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* The servers' addresses, as the role hearth_app. */}}
{{- define "hearth.servers" -}}
{{- range $name := list "DATABASE_URL" "REDIS_URL" }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $.root.Values.secrets.servers }}, key: {{ $name }}}}
{{- end }}
{{- if has .component (list "background" "portal") }}
{{- include "hearth.optional-secret" (merge (dict "key" "HEARTH_EMAIL_URL") .) }}
{{- end }}
{{- if eq .component "portal" }}
{{- range $name := list "HEARTH_NODE_DATABASE_URL" "HEARTH_NODE_REDIS_URL" }}
{{- include "hearth.optional-secret" (merge (dict "key" $name) $) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A variable that is set if the secret with the servers' addresses has it. */}}
{{- define "hearth.optional-secret" }}
- name: {{ .key }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.secrets.servers }}, key: {{ .key }}, optional: true}}
{{- end }}

{{/* Copies the secrets into the data directory, with the permissions that Hearth requires. */}}
{{- define "hearth.import" -}}
- name: secrets
  {{- include "hearth.container" . | nindent 2 }}
  command: [hearth, secrets, import, /run/secrets/hearth/secrets.json]
  env:
    - {name: HEARTH_DATA_DIR, value: /var/lib/hearth/data}
  volumeMounts:
    {{- include (.mounts | default "hearth.mounts") . | nindent 4 }}
    - {name: secrets, mountPath: /run/secrets/hearth, readOnly: true}
{{- end }}

{{/* What is made before the chart: the secrets, and the certificates to trust. */}}
{{- define "hearth.given-volumes" -}}
- name: secrets
  secret:
    secretName: {{ .secret }}
    items: [{key: secrets.json, path: secrets.json}]
{{- with .root.Values.trustedCertificates }}
{{- if or .configMap .secret }}
- name: trusted-certificates
  {{- if .configMap }}
  configMap:
    name: {{ .configMap }}
  {{- else }}
  secret:
    secretName: {{ .secret }}
  {{- end }}
    items: [{key: {{ .key }}, path: ca-bundle.pem}]
{{- end }}
{{- end }}
{{- end }}

{{- define "hearth.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 2
  failureThreshold: {{ .startupChecks | default 60 }}
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{/* A role: its container. */}}
{{- define "hearth.role" -}}
- name: {{ .component }}
  {{- include "hearth.container" . | nindent 2 }}
  command: [hearth, role, {{ .component }}]
  env:
    {{- include "hearth.environment" . | nindent 4 }}
    {{- include "hearth.servers" . | nindent 4 }}
    {{- if .exports }}
    - {name: HEARTH_USAGE_EXPORT_DIR, value: /var/lib/hearth-exports}
    {{- end }}
  ports:
    {{- with .clients }}
    - {name: http, containerPort: {{ . }}}
    {{- end }}
    - {name: metrics, containerPort: {{ .metrics }}}
  {{- include "hearth.probes" (dict "port" "metrics") | nindent 2 }}
  readinessProbe:
    httpGet: {path: /readyz, port: metrics}
    periodSeconds: 5
    timeoutSeconds: 5
  {{- if .clients }}
  # Until every machine has stopped sending new connections here.
  lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
  {{- end }}
  resources:
    {{- toYaml (get .root.Values .component).resources | nindent 4 }}
  volumeMounts:
    {{- include "hearth.mounts" . | nindent 4 }}
    {{- if .exports }}
    - {name: exports, mountPath: /var/lib/hearth-exports}
    {{- end }}
{{- end }}

{{/* The drain of a pod's usage log. It starts before the role that writes there, and ends after it. */}}
{{- define "hearth.drain" -}}
- name: drain
  restartPolicy: Always
  {{- include "hearth.container" (merge (dict "image" "drain") .) | nindent 2 }}
  command: [hearth, role, drain]
  env:
    {{- include "hearth.environment" . | nindent 4 }}
    {{- include "hearth.servers" . | nindent 4 }}
  ports:
    - {name: drain-metrics, containerPort: 8084}
  {{- include "hearth.probes" (dict "port" "drain-metrics") | nindent 2 }}
  resources:
    {{- toYaml .root.Values.drain.resources | nindent 4 }}
  volumeMounts:
    {{- include "hearth.mounts" . | nindent 4 }}
{{- end }}

{{- define "hearth.claim" -}}
- metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storage.className }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .storage.size }}}}
{{- end }}

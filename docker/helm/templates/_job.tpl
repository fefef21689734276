{{/* One command with the rights of the database's owner, after the secrets are there. */}}
{{- define "hearth.job" -}}
backoffLimit: 5
activeDeadlineSeconds: 1800
template:
  metadata:
    labels:
      {{- include "hearth.labels" . | nindent 6 }}
  spec:
    {{- include "hearth.pod" . | nindent 4 }}
    restartPolicy: OnFailure
    initContainers:
      {{- include "hearth.import" . | nindent 6 }}
    containers:
      - name: {{ .component }}
        {{- include "hearth.container" . | nindent 8 }}
        command: {{ toJson .command }}
        env:
          {{- include "hearth.environment" . | nindent 10 }}
          {{- include "hearth.servers" . | nindent 10 }}
          - name: DATABASE_OWNER_URL
            valueFrom: {secretKeyRef: {name: {{ .root.Values.secrets.servers }}, key: DATABASE_OWNER_URL}}
          {{- include "hearth.optional-secret" (merge (dict "key" "HF_TOKEN") .) | trim | nindent 10 }}
        resources:
          {{- toYaml .root.Values.bootstrap.resources | nindent 10 }}
        volumeMounts:
          {{- include "hearth.mounts" . | nindent 10 }}
          {{- with .config }}
          - {name: config, mountPath: /etc/hearth, readOnly: true}
          {{- end }}
    volumes:
      - {name: data, emptyDir: {}}
      {{- include "hearth.scratch" . | nindent 6 }}
      {{- include "hearth.given-volumes" . | nindent 6 }}
      {{- with .config }}
      - {name: config, configMap: {name: {{ . }}}}
      {{- end }}
{{- end }}

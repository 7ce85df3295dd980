{{- define "kunicorn.pipelineLabels" -}}
app.kubernetes.io/name: {{ include "kunicorn.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: pipeline
{{- end -}}

{{- define "kunicorn.pipelineMetadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "kunicorn.pipelineLabels" . | nindent 2 }}
  {{- include "kunicorn.commonLabels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The Job of one entry of `pipelines`: `name` and `run`. */}}
{{- define "kunicorn.pipelineJob" -}}
{{- $pipeline := .root.Values.pipeline -}}
backoffLimit: {{ $pipeline.backoffLimit }}
{{- with $pipeline.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int64 . }}
{{- end }}
{{- with $pipeline.ttlSecondsAfterFinished }}
ttlSecondsAfterFinished: {{ int64 . }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "kunicorn.pipelineLabels" .root | nindent 6 }}
      {{- include "kunicorn.commonLabels" .root | nindent 6 }}
  spec:
    restartPolicy: Never
    {{- include "kunicorn.podSettings" .root | nindent 4 }}
    containers:
      - name: pipeline
        # What a run keeps by a relative path (config.pipeline.directory) must land where it can be written.
        workingDir: /tmp
        args:
          {{- concat (list "pipeline" .run.command "--config" "/etc/kunicorn/config/config.toml" "--master" $pipeline.master) (default list .run.args) | toYaml | nindent 10 }}
        {{- include "kunicorn.container" (dict "root" .root "image" (include "kunicorn.pipelineImage" .root) "resources" $pipeline.resources) | nindent 8 }}
        ports:
          - name: http
            containerPort: {{ (include "kunicorn.effective" .root | fromJson).http.port | int }}
    volumes:
      {{- include "kunicorn.volumes" (dict "root" .root "tmp" $pipeline.tmp.sizeLimit) | nindent 6 }}
{{- end -}}

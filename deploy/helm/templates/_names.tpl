{{- define "kunicorn.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* 40 characters leave room for what StatefulSets, Jobs and CronJobs append; labels have 63. */}}
{{- define "kunicorn.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kunicorn.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kunicorn.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kunicorn.selector" -}}
app.kubernetes.io/name: {{ include "kunicorn.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: consumer
{{- end -}}

{{/* Labels of every object but for the component, which the objects of pipelines do not share. */}}
{{- define "kunicorn.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kunicorn.metadata" -}}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "kunicorn.selector" . | nindent 2 }}
  {{- include "kunicorn.commonLabels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kunicorn.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kunicorn.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kunicorn.image" -}}
{{- include "kunicorn.reference" (dict "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{- define "kunicorn.pipelineImage" -}}
{{- $image := merge (dict "repository" (default .Values.image.repository .Values.pipeline.image.repository)) .Values.pipeline.image -}}
{{- include "kunicorn.reference" (dict "image" $image "tag" (printf "%s-pipeline" (default .Chart.AppVersion .Values.image.tag))) -}}
{{- end -}}

{{/* An image as a pod names it; `tag` where it has none. Beside a digest, which alone counts, a tag of the values stays: it
is what people read. */}}
{{- define "kunicorn.reference" -}}
{{- if .image.digest -}}
{{- .image.repository }}{{ with .image.tag }}:{{ . }}{{ end }}@{{ .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "kunicorn.autoscaled" -}}
{{- if or .Values.autoscaling.keda.enabled .Values.autoscaling.hpa.enabled }}true{{ end -}}
{{- end -}}

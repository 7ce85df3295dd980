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

{{/* What pods are found by. `root` is the chart's context, `component` what they are part of (empty: consumer). */}}
{{- define "kunicorn.selector" -}}
app.kubernetes.io/name: {{ include "kunicorn.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ default "consumer" .component }}
{{- end -}}

{{/* Labels of an object: what it is found by, as above, and `labels`, those of its own, which go over everybody's. Merged:
a label that stands twice is refused by whatever reads YAML strictly, such as Flux and kustomize. */}}
{{- define "kunicorn.labels" -}}
{{- $ours := dict
      "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_")
      "app.kubernetes.io/version" .root.Chart.AppVersion
      "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- merge (dict) (default dict .labels) .root.Values.commonLabels (include "kunicorn.selector" . | fromYaml) $ours | toYaml -}}
{{- end -}}

{{/* Where an object is, with its labels, as above, and its annotations: those of its own, `annotations`, go over everybody's. */}}
{{- define "kunicorn.metadata" -}}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "kunicorn.labels" . | nindent 2 }}
{{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
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

{{/* "true" where a monitor of this chart adds the label `release` to each series, beside the operator's `namespace`. */}}
{{- define "kunicorn.monitored" -}}
{{- if or .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}true{{ end -}}
{{- end -}}

{{- define "kunicorn.autoscaled" -}}
{{- if or .Values.autoscaling.keda.enabled .Values.autoscaling.hpa.enabled }}true{{ end -}}
{{- end -}}

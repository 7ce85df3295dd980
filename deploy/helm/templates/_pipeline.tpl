{{/* "true" where Spark's executors are pods, which the driver asks Kubernetes for. */}}
{{- define "kunicorn.executorPods" -}}
{{- if and .Values.pipelines (hasPrefix "k8s://" .Values.pipeline.master) }}true{{ end -}}
{{- end -}}

{{- define "kunicorn.pipelineAccount" -}}
{{- if and (include "kunicorn.executorPods" .) .Values.serviceAccount.create -}}
{{ include "kunicorn.fullname" . }}-pipeline
{{- else -}}
{{ include "kunicorn.serviceAccountName" . }}
{{- end -}}
{{- end -}}

{{/*
Arguments of a run. A backfill goes on where it was, unless its own arguments name the run. A Job's run is named by what it
does: with another image, setting or chart the Job is another one, and the run is not, or everything would be handled
again. A CronJob's run is one of its time, so it is named after the Job that is made then.
*/}}
{{- define "kunicorn.pipelineArguments" -}}
{{- $args := default list .run.args -}}
{{- $named := false -}}
{{- range $args -}}
{{- if regexMatch "^--(run|resume|begin-or-resume|dry-run)(=|$)" (toString .) -}}{{- $named = true -}}{{- end -}}
{{- end -}}
{{- if and (eq .run.command "backfill") (not $named) -}}
{{- $does := list .run.command $args | toJson | sha256sum | trunc 8 -}}
{{- $run := ternary "$(JOB_NAME)" (printf "%s-%s-%s" (include "kunicorn.fullname" .root) .name $does) (not (empty .run.schedule)) -}}
{{- $args = concat $args (list "--begin-or-resume" $run) -}}
{{- end -}}
{{- $config := "/etc/kunicorn/config/config.toml" -}}
{{- concat (list "pipeline" .run.command "--config" $config "--master" (include "kunicorn.master" .root)) $args | toYaml -}}
{{- end -}}

{{/* Where Spark runs. In the one pod it takes as many cores as the pod has CPUs, by its limit or else its request: without a
limit Java counts the node's, and each core is one more process of Python, for which no memory is planned. */}}
{{- define "kunicorn.master" -}}
{{- $resources := default dict .Values.pipeline.resources -}}
{{- $cpus := coalesce (dig "limits" "cpu" "" $resources) (dig "requests" "cpu" "" $resources) | include "kunicorn.cpus" -}}
{{- if and (eq .Values.pipeline.master "local[*]") (ne $cpus "0") -}}
local[{{ $cpus }}]
{{- else -}}
{{ .Values.pipeline.master }}
{{- end -}}
{{- end -}}

{{/* "true" for a stream that has no end: only a signal or an error ends it. */}}
{{- define "kunicorn.endless" -}}
{{- $now := false -}}
{{- range .args -}}{{- if eq (toString .) "--available-now" -}}{{- $now = true -}}{{- end -}}{{- end -}}
{{- if and (eq .command "stream") (not $now) -}}true{{- end -}}
{{- end -}}

{{/* The setting that says where runs keep how far they are, if that is lost with the pod: it is neither a URL nor a place in
a volume of the values that outlives the pod. Empty otherwise. */}}
{{- define "kunicorn.lostDirectory" -}}
{{- $directory := dig "pipeline" "directory" "" (include "kunicorn.effective" . | fromJson) -}}
{{- $path := regexReplaceAll "^file:(//(localhost)?)?" $directory "" -}}
{{- /* A pipeline's container begins in /tmp. */ -}}
{{- $place := ternary $path (printf "/tmp/%s" $path) (hasPrefix "/" $path) -}}
{{- $kept := contains "://" $path -}}
{{- $lost := list "tmp" -}}
{{- range .Values.extraVolumes -}}
{{- if or (hasKey . "emptyDir") (hasKey . "ephemeral") -}}{{- $lost = append $lost .name -}}{{- end -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- $holds := hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $place) -}}
{{- if and $holds (not (has .name $lost)) -}}{{- $kept = true -}}{{- end -}}
{{- end -}}
{{- if not $kept -}}
config.pipeline.directory{{ if $directory }} = {{ $directory | quote }}{{ else }} (not set){{ end -}}
{{- end -}}
{{- end -}}

{{/* The Job of one entry of `pipelines`: `name` and `run`. */}}
{{- define "kunicorn.pipelineJob" -}}
{{- $pipeline := .root.Values.pipeline -}}
{{- $executors := include "kunicorn.executorPods" .root -}}
{{- if include "kunicorn.endless" .run }}
# It is always to run: crashes of months must not add up to its end, and there is no time at which it should be over.
backoffLimit: 2147483647
{{- else }}
backoffLimit: {{ $pipeline.backoffLimit }}
{{- with $pipeline.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int64 . }}
{{- end }}
{{- end }}
# A pod that is evicted, drained or preempted ends with 6: another one goes on, and that was no try.
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
{{- /* 0 is a value: at once. */}}
{{- if not (kindIs "invalid" $pipeline.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ int64 $pipeline.ttlSecondsAfterFinished }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "kunicorn.labels" (dict "root" .root "component" "pipeline" "labels" .root.Values.podLabels) | nindent 6 }}
    annotations:
      checksum/config: {{ include "kunicorn.toml" .root | sha256sum }}
      checksum/handlers: {{ toJson .root.Values.handlerFiles | sha256sum }}
      {{- with .root.Values.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    restartPolicy: Never
    # What is underway may end: a range takes about range_seconds, and then it is written down.
    terminationGracePeriodSeconds: {{ add 30 (dig "pipeline" "range_seconds" 30 (include "kunicorn.effective" .root | fromJson) | int) }}
    serviceAccountName: {{ include "kunicorn.pipelineAccount" .root | quote }}
    automountServiceAccountToken: {{ if $executors }}true{{ else }}{{ .root.Values.serviceAccount.automountToken }}{{ end }}
    {{- include "kunicorn.podSettings" .root | nindent 4 }}
    {{- with include "kunicorn.extraInitContainers" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    containers:
      - name: pipeline
        # What a run keeps by a relative path (config.pipeline.directory) must land where it can be written.
        workingDir: /tmp
        args:
          {{- include "kunicorn.pipelineArguments" . | nindent 10 }}
        {{- include "kunicorn.container" (dict "root" .root "image" (include "kunicorn.pipelineImage" .root) "resources" $pipeline.resources "driver" true) | nindent 8 }}
        ports:
          - name: http
            containerPort: {{ (include "kunicorn.effective" .root | fromJson).http.port | int }}
    volumes:
      {{- include "kunicorn.volumes" (dict "root" .root "tmp" $pipeline.tmp.sizeLimit) | nindent 6 }}
      {{- if $executors }}
      - name: spark
        configMap: {name: {{ include "kunicorn.fullname" .root }}-spark}
      {{- end }}
{{- end -}}

{{/* What Spark makes executors of: settings, handler, Secrets and all else of the driver's pod, but its rights. Spark
mounts a volume of its own at SPARK_LOCAL_DIRS, which is /tmp, unless one is there whose name begins like this; two at
one place are refused. */}}
{{- define "kunicorn.executorPod" -}}
{{- $scratch := "spark-local-dir-1" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "kunicorn.labels" (dict "root" . "component" "executor" "labels" .Values.podLabels) | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "kunicorn.podAccount" . | nindent 2 }}
  {{- include "kunicorn.podSettings" . | nindent 2 }}
  {{- with include "kunicorn.extraInitContainers" . }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: executor
      workingDir: /tmp
      {{- include "kunicorn.container" (dict "root" . "image" (include "kunicorn.pipelineImage" .) "resources" .Values.pipeline.resources "scratch" $scratch) | nindent 6 }}
  volumes:
    {{- include "kunicorn.volumes" (dict "root" . "tmp" .Values.pipeline.tmp.sizeLimit "scratch" $scratch) | nindent 4 }}
{{- end -}}

{{/* The settings as kunicorn will read them: config, and the paths of what auth mounts. As JSON, for fromJson. */}}
{{- define "kunicorn.settings" -}}
{{- $kafka := dict -}}
{{- $http := dict -}}
{{- $registry := dict -}}
{{- with .Values.auth.http -}}
{{- if .existingSecret -}}
{{- $_ := set $http "token_file" (printf "/etc/kunicorn/http/%s" .tokenKey) -}}
{{- end -}}
{{- end -}}
{{- with .Values.auth.sasl -}}
{{- if .existingSecret -}}
{{- $_ := set $kafka "sasl_password_file" (printf "/etc/kunicorn/sasl/%s" .passwordKey) -}}
{{- end -}}
{{- end -}}
{{- with .Values.auth.oauthbearer -}}
{{- if .existingSecret -}}
{{- $_ := set $kafka "sasl_oauthbearer_client_secret_file" (printf "/etc/kunicorn/oauthbearer/%s" .clientSecretKey) -}}
{{- end -}}
{{- end -}}
{{- with .Values.auth.tls -}}
{{- if .existingSecret -}}
{{- range $setting, $key := dict "ssl_ca_location" .caKey "ssl_certificate_location" .certKey "ssl_key_location" .keyKey "ssl_key_password_file" .keyPasswordKey -}}
{{- if $key -}}
{{- $_ := set $kafka $setting (printf "/etc/kunicorn/tls/%s" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.auth.schemaRegistry -}}
{{- if .existingSecret -}}
{{- range $setting, $key := dict "password_file" .passwordKey "ssl_ca_location" .caKey "ssl_certificate_location" .certKey "ssl_key_location" .keyKey -}}
{{- if $key -}}
{{- $_ := set $registry $setting (printf "/etc/kunicorn/schema-registry/%s" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) (dict "kafka" $kafka "http" $http "schema_registry" $registry) | toJson -}}
{{- end -}}

{{/* What holds where config says nothing: the defaults are kunicorn's own (settings-defaults.json is generated). */}}
{{- define "kunicorn.effective" -}}
{{- $effective := mergeOverwrite (.Files.Get "settings-defaults.json" | fromJson) (include "kunicorn.settings" . | fromJson) -}}
{{- if and $effective.handlers (not $effective.group.topics) -}}
{{- $topics := list -}}
{{- range $effective.handlers -}}
{{- $topics = concat $topics .topics -}}
{{- end -}}
{{- $_ := set $effective.group "topics" (uniq $topics) -}}
{{- end -}}
{{- $effective | toJson -}}
{{- end -}}

{{/* config.toml. Helm's own toToml writes whole numbers as 9400.0, which kunicorn refuses. */}}
{{- define "kunicorn.toml" -}}
{{- $settings := include "kunicorn.settings" . | fromJson -}}
{{- range $section := keys $settings | sortAlpha }}
{{- $table := get $settings $section }}
{{- if kindIs "slice" $table }}
{{- range $each := $table }}
[[{{ $section }}]]
{{- range $name := keys $each | sortAlpha }}
{{- $value := get $each $name }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "kunicorn.toml.value" $value }}
{{- end }}
{{- end }}
{{ end }}
{{- else if $table }}
[{{ $section }}]
{{- range $name := keys $table | sortAlpha }}
{{- $value := get $table $name }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ include "kunicorn.toml.value" $value }}
{{- end }}
{{- end }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* One value. JSON's texts and truth values are TOML's; tables are inline. */}}
{{- define "kunicorn.toml.value" -}}
{{- if kindIs "map" . -}}
{{- $items := list -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $items = append $items (printf "%s = %s" (toJson $key) (include "kunicorn.toml.value" $value)) -}}
{{- end -}}
{{- end -}}
{ {{- join ", " $items -}} }
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}
{{- $items = append $items (include "kunicorn.toml.value" .) -}}
{{- end -}}
[{{ join ", " $items }}]
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* Worker processes of one pod: workers.count, else the CPU limit rounded up, else 1. */}}
{{- define "kunicorn.workersPerPod" -}}
{{- $settings := include "kunicorn.effective" . | fromJson -}}
{{- $cpu := dig "limits" "cpu" "" .Values.resources | toString -}}
{{- if dig "workers" "count" nil $settings -}}
{{- int $settings.workers.count -}}
{{- else if hasSuffix "m" $cpu -}}
{{- max 1 (ceil (divf (trimSuffix "m" $cpu | float64) 1000)) | int -}}
{{- else if $cpu -}}
{{- max 1 (ceil (float64 $cpu)) | int -}}
{{- else -}}
1
{{- end -}}
{{- end -}}

{{- define "kunicorn.mostPods" -}}
{{- if include "kunicorn.autoscaled" . }}{{ int .Values.autoscaling.maxReplicas }}{{ else }}{{ int .Values.replicaCount }}{{ end -}}
{{- end -}}

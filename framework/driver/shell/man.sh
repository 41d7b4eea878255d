#!/bin/sh
# Writes the man page of vernier from what the program says itself: man.sh PROGRAM VERSION >vernier.1
set -eu

escaped() { sed 's/\\/\\e/g; s/-/\\-/g; s/^\([.'\'']\)/\\\&\1/; s/…/\\[u2026]/g'; }

cat <<PAGE
'\\" t
.TH VERNIER 1 "" "Vernier $2" "User Commands"
.SH NAME
vernier \- train models with LibTorch, by plugins that TOML files name
.SH SYNOPSIS
.B vernier
.I VERB
.RI [ ARGUMENT ...]
.SH DESCRIPTION
Vernier trains what TOML files say. Plugins give the task, the precision, the loss scaler, the accumulation, the
optimizer, the checkpoints, callbacks and monitors. \fBvernier plugins\fR lists them, and
\fBvernier plugins\fR \fIROLE/NAME\fR lists the options of one.
.PP
.in 0
.nf
PAGE
"$1" --help | sed 1,2d | escaped
for verb in $("$1" --help | awk '/^Any other verb/ {exit} /^  [a-z]/ {print $1}'); do
  help=$("$1" "$verb" --help)
  printf '.fi\n.SH VERNIER %s\n.in 0\n.nf\n' "$(echo "$verb" | tr '[:lower:]' '[:upper:]')"
  printf '%s\n' "$help" | escaped
done
cat <<'PAGE'
.fi
.SH EXIT STATUS
.TS
l l.
0	done
1	what was looked for is not so, as in \fBcheckpoint verify\fR
2	the command or the configuration is wrong
3	a plugin cannot be used
4	the training failed
5	the training diverged: its last weights or its last loss are not finite
124	[run] time_limit ended the run, with a checkpoint
128+\fIN\fR	signal \fIN\fR ended the run, with a checkpoint
.TE
.SH ENVIRONMENT
.TP
.B VERNIER_PLUGIN_PATH
folders of plugins, separated by colons
.TP
.B XDG_DATA_HOME
its folder vernier/plugins is searched for plugins; without it ~/.local/share
.TP
.B NO_COLOR
no colours on a terminal, if it is set and not empty
.SH FILES
.TP
.I runs/NAME
of a run: config.toml, log.txt, losses.jsonl, summary.json and checkpoints
.SH SEE ALSO
https://no-color.org, and docs/reference of the source tree: it has every option.
PAGE

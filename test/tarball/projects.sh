#!/usr/bin/env bash
# Runs a project of each template from the installed package, as its README says:
# projects.sh TARBALL ROOT, in an empty folder. PATH has node, npm, npx, sh and env only.
set -euo pipefail
tarball=$1
root=$2
tools=/usr/bin:/bin

answers() { # answers NAME TEXT: the log of the project has this line.
  PATH=$tools grep -qxF -- "$2" "$1.log" || { PATH=$tools cat "$1.log" >&2; echo "$1: expected $2" >&2; exit 1; }
}
typed() { # The programs of a project pass the type checks of its jsconfig.json.
  (cd "$1" && PATH=$tools "$node" "$root/node_modules/typescript-7/bin/tsc" -p jsconfig.json \
    --types node --typeRoots "$root/node_modules/@types")
}
node=$(command -v node)

npm install --silent --no-fund --no-audit "$tarball"
for template in chat pretrain own-model lora serve; do
  npx ds init "$template" --template "$template" >/dev/null
  typed "$template"
  npx ds validate "$template/ds_config.json" --strict >/dev/null
done

for template in pretrain own-model lora; do
  (cd "$template" && echo 'Who are you?' | npm start) >"$template.log" 2>&1
done
PATH=$tools grep -q '^In the winter' pretrain.log
answers own-model 'wash the oven -> kitchen'
answers own-model 'cut the lawn -> garden'
answers own-model 'paint the shelf -> workshop'
answers lora 'base: A token is a piece of text with a number.'
answers lora 'Hello! I am a tiny model from a project of ds init. You are welcome.'
(cd pretrain && echo 'In the winter' | npm run --silent write) >/dev/null

(cd serve && exec /usr/bin/setsid npm start -- --port 0) >serve.log 2>&1 &
server=$!
trap 'kill -- -$server 2>/dev/null || true' EXIT
for _ in {1..120}; do
  PATH=$tools grep -q '^ready' serve.log && break
  PATH=$tools sleep 0.5
done
url=$(PATH=$tools sed -n 's|.*\(http://[0-9.:]*/v1\).*|\1|p' serve.log)
(cd serve && OPENAI_BASE_URL=$url npm run --silent ask -- 'What is ZeRO?') >ask.log
answers ask 'ZeRO divides weights, gradients and optimizer state among GPUs.'
kill -- -$server
wait $server || true
trap - EXIT

# A project on its own: no parent folder has the package.
npm exec --yes --package "$tarball" -- ds init alone --template own-model >alone.log
PATH=$tools mv alone "${alone:=$(PATH=$tools mktemp -d)}/alone"
(cd "$alone/alone" && npm install --silent --no-fund --no-audit "$tarball" && npm start) >alone.log
answers alone 'cut the lawn -> garden'
PATH=$tools rm -r "$alone"
echo 'the project of each template trains and answers'

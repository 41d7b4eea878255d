#!/bin/sh
# run.sh FOLDER [PRETRAIN_STEPS [FINETUNE_STEPS]]: makes a corpus, trains its tokenizer, pre-trains a small model,
# fine-tunes it on questions in whole and by LoRA, generates, and exports. With the steps of the files it takes some
# minutes on two cores. VERNIER: the program.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
vernier=${VERNIER:-vernier}
folder=${1:?name a folder to work in} pretrain=${2:-1500} finetune=${3:-300}
mkdir -p "$folder"
cd "$folder"

echo "== corpus"
sh "$here/corpus.sh" texts 8000 1 >train.txt
sh "$here/corpus.sh" texts 400 2 >held_out.txt
sh "$here/corpus.sh" questions 1000 3 >questions.jsonl
sh "$here/corpus.sh" questions 100 4 >held_out.jsonl

echo "== tokenizer"
$vernier tokenize train.txt --train --vocabulary 400 --tokenizer model --output train.bin
$vernier tokenize held_out.txt --tokenizer model --output held_out.bin
cat >model/config.json <<'END'
{"model_type": "llama", "vocab_size": 400, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
 "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": true}
END

echo "== pre-training"
$vernier train "$here/pretrain.toml" --set run.steps="$pretrain" --quiet
$vernier generate runs/pretrain --prompt "The fox is" --temperature 0 --max-tokens 16 --stop .
$vernier export runs/pretrain --format huggingface --output base

echo "== fine-tuning"
$vernier train "$here/finetune.toml" --set run.steps="$finetune" --quiet
$vernier train "$here/finetune.toml" "$here/lora.toml" --set run.steps="$finetune" --quiet
for run in runs/finetune runs/lora; do
  $vernier evaluate $run
done

echo "== questions"
cat >asked.jsonl <<'END'
{"prompt": "Question: What does the owl eat?\nAnswer:"}
{"prompt": "Question: Where does the otter live?\nAnswer:"}
{"prompt": "Question: What colour is the wren?\nAnswer:"}
END
$vernier generate runs/finetune --input asked.jsonl --temperature 0 --max-tokens 30 --output answers.jsonl
cat answers.jsonl

echo "== export"
$vernier export runs/finetune --format huggingface --output tuned
$vernier export runs/lora --format peft --output adapter
$vernier generate tuned --input asked.jsonl --temperature 0 --max-tokens 30 --output again.jsonl
cmp answers.jsonl again.jsonl
ls tuned adapter

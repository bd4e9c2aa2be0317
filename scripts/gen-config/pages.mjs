// Declares the configurations: schemas, generated files, and the first lines of their pages.
import { loadSchema } from './schema.mjs';

const TRAINING = `# Configuration

A configuration sets batch size, optimizer, precision, ZeRO and offload. \`initialize()\`, the Trainer and \`ds train\`
read it from an object or from a file such as \`ds_config.json\`. It has the keys of DeepSpeed 0.19.6, and a few more.

\`\`\`json
{
  "$schema": "./node_modules/@ds/native/ds_config.schema.json",
  "train_batch_size": 16,
  "bf16": { "enabled": true },
  "optimizer": { "type": "AdamW", "params": { "lr": 3e-4 } },
  "zero_optimization": { "stage": 2 }
}
\`\`\`

Most runs need few keys. Begin with these, and leave out all others:

| goal | key |
| --- | --- |
| choose the batch size | \`train_batch_size\`; if memory is short, also \`train_micro_batch_size_per_gpu\` |
| train in bf16 | [\`bf16\`](#bf16): \`enabled\` |
| choose optimizer and learning rate | [\`optimizer\`](#optimizer): \`type\`, and \`lr\` in \`params\` |
| raise and lower the learning rate | [\`scheduler\`](#scheduler) |
| fit a larger model | \`stage\` and \`offload_optimizer\` of [\`zero_optimization\`](#zero_optimization) |
| print losses | \`steps_per_print\` |

[Recipes](recipes.md) has complete files.

- **Use a file.** Call \`initialize({ model, config: 'ds_config.json' })\`, or run \`ds train --deepspeed ds_config.json\`.
- **Check a file.** \`ds validate FILE\` prints every value. \`$schema\` gives completion in editors.
- **Batch size.** \`train_batch_size\` is \`train_micro_batch_size_per_gpu\` x \`gradient_accumulation_steps\` x data ranks.
  If the three keys do not fit, the engine throws \`DS_CONFIG\`.
- **Unknown keys** cause a notice. They are an error in \`params\` of \`scheduler\` and of \`optimizer\` (except Muon's). With
  \`strict: true\` of \`initialize()\`, every unknown key is an error.
- **Format.** A file may have comments and trailing commas, and at most 8 MiB.

| keys of | sections |
| --- | --- |
| batch, clipping, seed, progress | [top level](#top-level) |
| optimizer and learning rate | [optimizer](#optimizer), [scheduler](#scheduler) |
| precision | [bf16](#bf16), [fp16](#fp16), [fp8](#fp8), [data_types](#data_types), [torch_autocast](#torch_autocast) |
| ZeRO and offload | [zero_optimization](#zero_optimization), [aio](#aio), [weight_quantization](#weight_quantization) |
| activations | [activation_checkpointing](#activation_checkpointing), [sparse_attention](#sparse_attention) |
| parallelism | [tensor_parallel](#tensor_parallel), [pipeline](#pipeline), [elasticity](#elasticity), [hybrid_engine](#hybrid_engine) |
| data | [curriculum_learning](#curriculum_learning), [data_efficiency](#data_efficiency), [progressive_layer_drop](#progressive_layer_drop) |
| checkpoints and compression | [checkpoint](#checkpoint), [compression_training](#compression_training) |
| watching and tuning | [tensorboard](#tensorboard), [csv_monitor](#csv_monitor), [flops_profiler](#flops_profiler), [autotuning](#autotuning) |

\`ds validate\` prints each value and its source, for example a default that follows from another key. If a key of the
tables below has no status, it works as described. Otherwise:

| status | meaning |
| --- | --- |
| **works on several ranks**, with \`offload_optimizer\`, on nvme, or at some stages | elsewhere the key has no effect |
| **no effect** | accepted; one notice states the reason, unless the key is off or has its default |
| **not supported yet** | an error, unless the key is off or has its default |
| **deprecated** | accepted under the old name; a notice states the new name |

Off means \`false\`, \`null\`, \`"enabled": false\` or \`"device": "none"\`. In the tables, a section is an object with keys
of its own.

**\`"auto"\`.** A [Trainer](trainer.md#configuration) fills \`"auto"\` by the rules of Hugging Face's Trainer. In
\`zero_optimization\`, \`stage\`, \`offload_optimizer\` (\`device\`, \`ratio\`) and \`offload_param\` (\`device\`) take the
fastest choice that fits ([planning](planning.md#let-the-plan-choose)).
`;

const INFERENCE = `# Inference configuration

Set precision, context, memory and scheduling of an [inference engine](inference.md) or of [\`ds serve\`](serving.md). All
keys are optional. They have the names of DeepSpeed 0.19.6, and the step limits of DeepSpeed-FastGen.

\`\`\`json
{
  "$schema": "./node_modules/@ds/native/ds_inference_config.schema.json",
  "dtype": "bf16",
  "max_out_tokens": 32768,
  "quant": { "weight": { "num_bits": 8 } },
  "kv_cache": { "memory": 8589934592, "host_memory": 34359738368 },
  "enable_cuda_graph": "auto"
}
\`\`\`

This file, \`engine.json\`, stores the weights in 8 bits. The cache gets 8 GiB of GPU memory, and 32 GiB of host memory
for [prefixes](inference-memory.md#prefixes-in-host-memory). Texts have up to 32,768 tokens; without \`max_out_tokens\`,
up to the model's maximum. Pass the path of the file to \`initInference('llama', 'engine.json')\`, or to \`ds serve llama
--config engine.json\`.

The config is an object, or a file in the format of [ds_config.json](configuration.md). \`$schema\` gives completion in
editors.

| goal | key |
| --- | --- |
| a limit for prompt and answer together | \`max_out_tokens\` |
| less memory for weights | [\`quant\`](#quant) |
| less memory for keys and values, or more of it | [\`kv_cache\`](#kv_cache): \`memory\`, \`dtype\` |
| more requests at a time | \`max_ragged_sequence_count\` |
| faster answers for few requests | \`enable_cuda_graph: "auto"\`, [\`speculative\`](#speculative) |
| a model on several GPUs | [\`tensor_parallel\`](#tensor_parallel): \`tp_size\` |

A key works as described if it has no status. Otherwise:

| status | meaning |
| --- | --- |
| **no effect** | accepted; one notice states the reason, unless the key is off or has its default |
| **not supported yet** | an error, unless the key is off (\`false\`, \`null\`) or has its default |
| **deprecated** | accepted under the old name; a notice states the new name |

- A key together with its other name is an error. So are different values of a key in the configuration and in the
  options of a call.
- \`"auto"\` means the default.
- \`dtype\` also takes the names of PyTorch, with or without \`torch.\`: \`float16\`, \`half\`, \`bfloat16\`, \`float32\`,
  \`float\`.
`;

/** A configuration: its schema and its page's beginning, and the files that are made of them. */
function configuration(source, files, { title, intro }) {
  return { source, schema: loadSchema(source), files, title, intro };
}

export const configurations = [
  configuration(
    'lib/config/schema.json',
    {
      types: 'types/config.generated.d.ts',
      published: 'ds_config.schema.json',
      reference: 'docs/configuration.md',
    },
    { title: 'ds_config.json', intro: TRAINING },
  ),
  configuration(
    'lib/inference/config/schema.json',
    {
      types: 'types/inference-config.generated.d.ts',
      published: 'ds_inference_config.schema.json',
      reference: 'docs/inference-configuration.md',
    },
    { title: 'ds_inference_config.json', intro: INFERENCE },
  ),
];

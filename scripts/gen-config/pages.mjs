// Declares the configurations: schemas, generated files, and the first lines of their pages.
import { loadSchema } from './schema.mjs';

const TRAINING = `# Configuration

Set batch size, optimizer, precision, ZeRO and offload in an object, or in a file such as \`ds_config.json\`.
\`initialize()\`, the Trainer and \`ds train\` read it. The keys are DeepSpeed's (0.19.6), and a few more.

\`\`\`json
{
  "$schema": "./node_modules/@ds/native/ds_config.schema.json",
  "train_batch_size": 16,
  "bf16": { "enabled": true },
  "optimizer": { "type": "AdamW", "params": { "lr": 3e-4 } },
  "zero_optimization": { "stage": 2 }
}
\`\`\`

Most runs need only these keys:

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
- **Format.** A file may have comments and trailing commas, and at most 1 MiB.

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

\`ds validate\` prints each value and its source, for example a default that follows from another key. In the tables
below, keys without a status work as described. Other keys have one of these statuses:

| status | meaning |
| --- | --- |
| **works on several ranks**, with \`offload_optimizer\`, on nvme, or at some stages | elsewhere the key has no effect |
| **no effect** | accepted; one notice states the reason, unless the key is off or has its default |
| **not supported yet** | an error, unless the key is off or has its default |
| **deprecated** | accepted under the old name; a notice states the new name |

Off means \`false\`, \`null\`, \`"enabled": false\` or \`"device": "none"\`. A section is an object with its own keys.

**\`"auto"\`.** A [Trainer](trainer.md#configuration) fills \`"auto"\` by the rules of Hugging Face's Trainer. For
\`stage\`, \`offload_optimizer\` (\`device\`, \`ratio\`) and \`offload_param\` (\`device\`) of \`zero_optimization\`, the engine
selects the fastest values that fit ([planning](planning.md#let-the-plan-choose)).
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

Save this configuration as \`engine.json\`. It stores the weights in 8 bits. The cache gets 8 GiB of GPU memory, and 32
GiB of host memory for [prefixes](inference-memory.md#prefixes-in-host-memory). Texts have up to 32,768 tokens.

| you use | pass |
| --- | --- |
| a program | \`initInference('llama', 'engine.json')\`, or an object instead of the path |
| a server | \`ds serve llama --config engine.json\` |

The file has the format of [ds_config.json](configuration.md). \`$schema\` gives completion in editors.

| goal | key |
| --- | --- |
| a limit for prompt and answer together | \`max_out_tokens\` |
| less memory for weights | [\`quant\`](#quant) |
| more or less memory for keys and values | [\`kv_cache\`](#kv_cache): \`memory\`, \`dtype\` |
| more requests at a time | \`max_ragged_sequence_count\` |
| faster answers for few requests | \`enable_cuda_graph: "auto"\`, [\`speculative\`](#speculative) |
| a model on several GPUs | [\`tensor_parallel\`](#tensor_parallel): \`tp_size\` |

Keys without a status work as described. Other keys have one of these statuses:

| status | meaning |
| --- | --- |
| **no effect** | accepted; one notice states the reason, unless the key is off or has its default |
| **not supported yet** | an error, unless the key is off (\`false\`, \`null\`) or has its default |
| **deprecated** | accepted under the old name; a notice states the new name |

- A key and its other name together are an error. A key with different values in the configuration and in the options of
  a call is an error too.
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

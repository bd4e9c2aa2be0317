// The configurations that there are: where each schema lies, what is made of it, and how its page
// begins.
import { loadSchema } from './schema.mjs';

const TRAINING = `# Configuration

The keys of \`ds_config.json\`: those of DeepSpeed 0.19.6, and \`seed\`. A file is JSON with comments and trailing commas: a
regular file of at most 8 MiB, nested at most 100 levels deep (a pipe such as \`/dev/stdin\` is refused).
For completion in an editor, let the file begin with

\`\`\`json
{ "$schema": "./node_modules/@ds/native/ds_config.schema.json" }
\`\`\`

The status of a key is one of

- **works**;
- **works on several ranks**, with \`offload_optimizer\`, or at the ZeRO stages named: elsewhere it has no effect;
- **no effect**: accepted, and answered with one notice that says why, unless it is off or the default;
- **not supported yet**: an error that names the key, unless it is off (\`false\`, \`null\`, \`"enabled": false\`,
  \`"device": "none"\`) or the default.

Where a type says \`"auto"\`, a [Trainer](trainer.md#the-command) fills the value, by the table of Hugging Face's. \`zero_optimization.stage\`, \`offload_optimizer\`
(its \`device\` and \`ratio\`) and \`offload_param\` (its \`device\`) ask the plan: \`initialize()\` fills them with the fastest way that fits ([planning.md](planning.md#let-the-plan-choose)).
`;

const INFERENCE = `# Inference configuration

The keys of \`initInference(model, config)\`: those of DeepSpeed 0.19.6, and those that say how much runs at a time. \`config\` is an object or a file
as [ds_config.json](configuration.md) is one; for completion in an editor, let it begin with

\`\`\`json
{ "$schema": "./node_modules/@ds/native/ds_inference_config.schema.json" }
\`\`\`

The status of a key is one of

- **works**;
- **no effect**: accepted, and answered with one notice that says why, unless it is off or the default;
- **not supported yet**: an error that names the key, unless it is off (\`false\`, \`null\`) or the default.

A key and another name of it together are an error, and so is a key that the configuration and the options of a call say differently. \`"auto"\` stands for
the default. \`dtype\` takes torch's names, too: \`float16\`, \`half\`, \`bfloat16\`, \`float32\`, \`float\`, with and without \`torch.\` before them.
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

// Runs a benchmark by name and leaves its result in bench/results: node build/js/bench/main.js NAME
// [options].

import { activationsBench } from './activations.js';
import { adamBench } from './adam.js';
import { adaptersBench } from './adapters.js';
import { attentionBench } from './attention.js';
import { checkpointBench } from './checkpoint.js';
import { cpuBench } from './cpu.js';
import { decodeBench } from './decode.js';
import { dpoBench } from './dpo.js';
import { embedBench } from './embed.js';
import { fp8LossBench } from './fp8-loss.js';
import { grammarBench } from './grammar.js';
import { grpoBench } from './grpo.js';
import { asksForHelp, helpOf } from './help.js';
import { hostBench } from './host.js';
import { inferenceMemoryBench } from './inference-memory.js';
import { kernelsBench } from './kernels.js';
import { loaderBench } from './loader.js';
import { oneBitBench } from './onebit.js';
import { parallelismBench } from './parallelism.js';
import { preferencesBench } from './preferences.js';
import { quantizationQualityBench } from './quantization-quality.js';
import { writeResult } from './report.js';
import { rewardsBench } from './rewards.js';
import { serveBench } from './serve.js';
import { speculationBench } from './speculation.js';
import { trainBench } from './train.js';
import { zeroMemoryBench } from './zero-memory.js';

export type Options = Record<string, string>;
/** Null where another rank reports. */
export type Bench = (options: Options) => Promise<object | null> | object;

const benches: Record<string, Bench> = {
  host: hostBench,
  adapters: adaptersBench,
  adam: adamBench,
  checkpoint: checkpointBench,
  cpu: cpuBench,
  decode: decodeBench,
  embed: embedBench,
  train: trainBench,
  'fp8-loss': fp8LossBench,
  serve: serveBench,
  activations: activationsBench,
  attention: attentionBench,
  grammar: grammarBench,
  kernels: kernelsBench,
  'inference-memory': inferenceMemoryBench,
  loader: loaderBench,
  dpo: dpoBench,
  grpo: grpoBench,
  preferences: preferencesBench,
  'quantization-quality': quantizationQualityBench,
  onebit: oneBitBench,
  rewards: rewardsBench,
  speculation: speculationBench,
  parallelism: parallelismBench,
  'zero-memory': zeroMemoryBench,
};

/** `--key value` pairs and bare `--flag`s (value "true"). */
function parseOptions(words: readonly string[]): Options {
  const options: Options = {};
  for (let i = 0; i < words.length; ++i) {
    const key = (words[i] as string).replace(/^--/, '');
    const next = words[i + 1];
    const bare = next === undefined || next.startsWith('--');
    options[key] = bare ? 'true' : next;
    if (!bare) i++;
  }
  return options;
}

async function main(): Promise<void> {
  const [name, ...words] = process.argv.slice(2);
  const bench = benches[name ?? ''];
  if (!bench) {
    console.error(`usage: npm run bench -- ${Object.keys(benches).join('|')} [--option value]`);
    process.exitCode = 2;
    return;
  }
  const options = parseOptions(words);
  if (asksForHelp(options)) {
    console.log(helpOf(name as string));
    return;
  }
  const result = await bench(options);
  if (result) writeResult(name as string, options, result);
}

void main();

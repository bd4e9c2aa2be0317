// All cases of the native op matrix.
import type { Case } from '../../support/case.js';
import { cases as accumulate } from './accumulate.js';
import { cases as adafactor } from './adafactor.js';
import { cases as adamw } from './adamw.js';
import { cases as adamwSpeculate, equalities } from './adamw-speculate.js';
import { cases as adamw8bit } from './adamw8bit.js';
import { cases as attention } from './attention.js';
import { cases as big } from './big.js';
import { cases as copy } from './copy.js';
import { cases as creation } from './creation.js';
import { cases as elementwise } from './elementwise.js';
import { cases as errors } from './errors.js';
import { cases as experts } from './experts.js';
import { cases as gradients } from './gradients.js';
import type { MatrixCase } from './harness.js';
import { cases as lamb } from './lamb.js';
import { cases as lookup } from './lookup.js';
import { cases as matmul } from './matmul.js';
import { cases as multinomial } from './multinomial.js';
import { cases as muon } from './muon.js';
import { cases as nf4 } from './nf4.js';
import { cases as norm } from './norm.js';
import { cases as onebit } from './onebit.js';
import { cases as optimizerRules } from './optimizer-rules.js';
import { cases as pagedAttention } from './paged-attention.js';
import { cases as quantizedLinear } from './quantized-linear.js';
import { cases as reduce } from './reduce.js';
import { cases as rope } from './rope.js';
import { cases as rotaryStore } from './rotary-store.js';
import { cases as sample } from './sample.js';
import { cases as scan } from './scan.js';
import { cases as scatter } from './scatter.js';
import { cases as signPack } from './sign-pack.js';
import { cases as softmax } from './softmax.js';
import { cases as sort } from './sort.js';
import { cases as swiglu } from './swiglu.js';

/** One op, one layout, one dtype each. */
export const opCases: readonly MatrixCase[] = [
  ...creation,
  ...copy,
  ...elementwise,
  ...accumulate,
  ...reduce,
  ...softmax,
  ...swiglu,
  ...matmul,
  ...lookup,
  ...scan,
  ...scatter,
  ...sort,
  ...multinomial,
  ...sample,
  ...norm,
  ...attention,
  ...pagedAttention,
  ...rope,
  ...rotaryStore,
  ...adamw,
  ...adamwSpeculate,
  ...optimizerRules,
  ...onebit,
  ...signPack,
  ...adafactor,
  ...adamw8bit,
  ...lamb,
  ...muon,
  ...nf4,
  ...quantizedLinear,
  ...experts,
];

export const cases: readonly Case[] = [...opCases, ...equalities, ...gradients, ...errors, ...big];

// Every differentiable function has a gradient case.
import * as ops from '../../lib/tensor/ops/index.js';
import { checks as matrix } from '../native/matrix/index.js';
import { checks as composed } from './composed.cases.js';
import { checks as elementwise } from './elementwise.cases.js';
import { checks as layers } from './layers.cases.js';
import { checks as losses } from './losses.cases.js';
import { checks as order } from './order.cases.js';
import { checks as views } from './views.cases.js';

const notDifferentiable = new Set([
  'FunctionContext',
  'LossReport',
  'countEmptyMeans',
  'full',
  'zeros',
  'ones',
  'zerosLike',
  'onesLike',
  'arange',
  'randn',
  'uniform',
  'compare',
  'eq',
  'ne',
  'lt',
  'le',
  'gt',
  'ge',
  'argmax',
  'unary',
  'countEmptyMeans',
  ...['logicalAnd', 'logicalOr', 'logicalXor', 'logicalNot', 'any', 'all', 'countNonzero'],
  ...['isnan', 'isinf', 'isfinite', 'argmin', 'oneHot'],
  ...['fullLike', 'linspace', 'eye', 'randint', 'randperm', 'multinomial', 'argsort'],
  ...['add_', 'sub_', 'mul_', 'div_', 'neg_', 'exp_', 'sqrt_', 'relu_', 'clamp_', 'fill_', 'zero_'],
  ...['copy_', 'maskedFill_', 'normal_', 'uniform_', 'documentPositions'],
  ...[
    'groupRows',
    'groupOfRows',
    'choicesOf',
    'BlockLayout',
    'chooseTokens',
    'indicesOfTokens',
    'drawOf',
  ],
  'noiseLike',
]);

const covered = new Set(
  [...composed, ...elementwise, ...layers, ...losses, ...order, ...views, ...matrix].map(
    ({ op }) => op,
  ),
);

test.each(Object.keys(ops).filter((name) => !notDifferentiable.has(name)))('%s', (name) => {
  expect(covered).toContain(name);
});

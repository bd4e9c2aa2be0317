// The classes of encoders for Hugging Face folders. A new family adds a line here.
export { Bert } from './bert/bert.js';
export { Deberta } from './deberta-v2/deberta-v2.js';
export { DistilBert } from './distilbert/distilbert.js';
export { Electra } from './electra/electra.js';
export { ModernBert } from './modernbert/modernbert.js';
export { Roberta } from './roberta/roberta.js';
export { XlmRoberta } from './xlm-roberta/xlm-roberta.js';

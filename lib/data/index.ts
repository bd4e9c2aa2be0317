// The door of the data room.
export { type Batched, collate } from './collate.js';
export { DataLoader, type DataLoaderOptions, type Dataset, repeat } from './data-loader.js';
export { type TextSource, TokenDataset, type TokenWindow } from './token-dataset.js';

// compare.mjs: our tokenizer against an independent implementation on generated texts.
// usage: compare.mjs TOKENIZE_LINES NPM_FOLDER TOKENIZER_JSON SEED COUNT [characters]
// exit status 77: the packages are not there
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { bytes, random, text } from './generate.mjs';

const [program, npmFolder, tokenizerFile, seed, count, mode] = process.argv.slice(2);
if (!existsSync(`${npmFolder}/installed.json`)) {
  console.log(`SKIPPED: no packages in ${npmFolder}; tests/text/npm_setup.sh fetches them`);
  process.exit(77);
}
const { Tokenizer } = createRequire(`${npmFolder}/`)('@anush008/tokenizers');

const json = JSON.parse(readFileSync(tokenizerFile, 'utf8'));
const original = Tokenizer.fromString(JSON.stringify(json));
const withoutAdded = Tokenizer.fromString(JSON.stringify({ ...json, added_tokens: [] }));
const special = json.added_tokens.map((token) => token.content);
const allIds = [...json.added_tokens.map((token) => token.id), ...Object.values(json.model.vocab)];
const largest = allIds.reduce((a, b) => Math.max(a, b));

const hex = (value) => Buffer.from(value).toString('hex');
const encode = async (tokenizer, string) =>
  (await tokenizer.encode(string, null, { addSpecialTokens: false })).getIds().join(' ');
const preTokenizer = original.getPreTokenizer();
// Lengths in bytes: byte-level spelling has one character per byte. Each length is followed by a blank.
const pieces = (string) => preTokenizer.preTokenizeString(string).map(([piece]) => `${[...piece].length} `).join('');

function run(input) {
  const result = spawnSync(program, [tokenizerFile], { input, encoding: 'utf8', maxBuffer: 1 << 30, timeout: 120000 });
  if (result.status === 0) return result.stdout.split('\n');
  console.error(`${program} ended with ${result.status ?? result.signal}: ${result.stderr}`);
  process.exit(1);
}

// request line -> what the other implementation says
const cases = [];
const r = random(seed);
for (let i = 0; i < count; i++) {
  const string = text(r, special);
  cases.push({ line: `a ${hex(string)}`, want: await encode(original, string), what: string });
  cases.push({ line: `s ${hex(string)}`, want: pieces(string), what: string });
  cases.push({ line: `p ${hex(string)}`, want: await encode(withoutAdded, string), what: string });
}
for (let i = 0; i < count / 4; i++) {
  const broken = bytes(r, special);
  cases.push({ line: `a ${hex(broken)}`, want: await encode(original, new TextDecoder('utf-8', { ignoreBOM: true }).decode(broken)), what: hex(broken) });
}
for (let i = 0; i < count / 4; i++) {
  const ids = Array.from({ length: 1 + r(12) }, () => r(r(2) ? 260 : largest + 1));
  cases.push({ line: `d ${ids.join(' ')}`, want: hex(await original.decode(ids, false)), what: ids.join(' ') });
}
// Every character there is (in the version of Unicode that we know; private ones are all alike), in places where its
// class decides how the text is cut.
if (mode === 'characters') {
  const unassigned = new Set(run('u\n')[0].trim().split(' ').map(Number));
  const skipped = (c) => unassigned.has(c) || (c >= 0xd800 && c < 0xf900 && c !== 0xe000) || c >= 0xf0000;
  const codes = Array.from({ length: 0x110000 }, (_, c) => c).filter((c) => !skipped(c));
  while (codes.length) {
    const part = codes.splice(0, 32);
    const string = part.map((code) => String.fromCodePoint(code)).map((c) => `x${c}y ${c}${c} !${c}\n${c} z`).join('');
    cases.push({ line: `s ${hex(string)}`, want: pieces(string), what: `from U+${part[0].toString(16)}` });
  }
}

const got = run(cases.map((c) => c.line).join('\n') + '\n');
let different = got.length === cases.length + 1 ? 0 : 1;
cases.forEach((c, i) => {
  if (got[i] === c.want || ++different > 10) return;
  console.error(`${c.line[0]} ${JSON.stringify(c.what)}\n  ours:   ${got[i]}\n  theirs: ${c.want}`);
});
const kinds = [...'apsd'].map((k) => `${cases.filter((c) => c.line[0] === k).length} ${k}`).join(', ');
console.log(`${tokenizerFile}: ${cases.length} requests (${kinds}), ${different} different`);
process.exit(different ? 1 : 0);

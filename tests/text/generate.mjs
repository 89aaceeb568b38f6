// generate.mjs: seeded texts that are hard for a tokenizer.

export function random(seed) {
  let state = BigInt(seed) * 2654435761n + 1n;
  return (limit) => {
    state = BigInt.asUintN(64, state * 6364136223846793005n + 1442695040888963407n);
    return Number((state >> 33n) % BigInt(limit));
  };
}

const range = (first, last) => (r) => String.fromCodePoint(first + r(last - first + 1));
const choice = (...list) => (r) => list[r(list.length)];

// Each kind makes one short run.
const characters = [
  range(0x61, 0x7a), range(0x41, 0x5a), range(0x30, 0x39), range(0x21, 0x2f), range(0x3a, 0x40), range(0x5b, 0x60),
  range(0xa1, 0x17f), range(0x391, 0x3c9), range(0x410, 0x44f), range(0x5d0, 0x5ea), range(0x621, 0x64a),
  range(0x660, 0x669), range(0x905, 0x939), range(0x93e, 0x94d), range(0xe01, 0xe3a), range(0xe40, 0xe4e),
  range(0x1100, 0x1112), range(0xac00, 0xd7a3), range(0x3041, 0x3096), range(0x30a1, 0x30fa), range(0x3000, 0x303f),
  range(0x4e00, 0x9fa5), range(0x9fa6, 0x9fff), range(0x3400, 0x4dbf), range(0x20000, 0x2a6df), range(0x300, 0x36f),
  range(0x20d0, 0x20f0), range(0x2070, 0x209c), range(0x2150, 0x218b), range(0x2190, 0x23ff), range(0x2460, 0x249b),
  range(0x1f300, 0x1f5ff), range(0x1f600, 0x1f64f), range(0x1d400, 0x1d7ff), range(0xff01, 0xff5e),
  range(0x1e00, 0x1eff), range(0x13a0, 0x13f5), range(0x10000, 0x1005d), range(0xe000, 0xe0ff), range(0, 0x1f),
  range(0x7f, 0x9f), range(0x200b, 0x200f), range(0x2028, 0x202f), range(0x180b, 0x180e),
];
const spaces = choice(' ', '  ', '\t', '\n', '\r\n', '\r', '\u00a0', '\u3000', '\u2003', '\u2028', '\u0085', '\u000b', '\f',
  '\u1680', '\u180e', '\u200b', '\u202f', '\u205f', '\ufeff');
const emoji = choice('👍🏽', '👨‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪', '❤️', '1️⃣', '🧑🏿‍🚀', '☺', '🦆', '©️');
const words = choice('Hello', "don't", 'HTTPServer', 'snake_case', 'x86_64', '3.14159', '1,000,000', '你好，世界', 'こんにちは',
  'カタカナ', '안녕하세요', 'مرحبا', 'नमस्ते', 'Привет', 'Ελληνικά', 'ﬁ', 'İstanbul', 'e\u0301', 'ก็', '१२३', 'Ⅷ', '½', '𝟘𝟙𝟚', "I'LL");
const code = choice('for (int i = 0; i < n; i++) {\n', '\tif x == None:\n\t\treturn\n', '#include <stdio.h>\r\n', '</div>\n\n',
  'a[i]->b::c', '/* … */', '{"key": [1, 2.5e-3, null]}', '$HOME/.config', 'https://example.org/?q=a%20b', '\\n\\u0041', '===', '!!!???');

function run(r, special) {
  const kind = r(12);
  const repeat = (n, make) => Array.from({ length: n }, () => make(r)).join('');
  if (kind < 4) return repeat(1 + r(6), characters[r(characters.length)]);
  if (kind < 6) return repeat(1 + r(4), spaces);
  if (kind === 6) return repeat(1 + r(2), emoji);
  if (kind === 7) return repeat(1 + r(9), range(0x30, 0x39));
  if (kind === 8) return words(r);
  if (kind === 9) return code(r);
  if (kind === 10) return special[r(special.length)].slice(0, r(4) ? undefined : 1 + r(8));
  return ' ';
}

// A string of 1 to 40 runs. special: texts of added tokens, whole or cut short.
export function text(r, special) {
  let out = '';
  for (let n = 1 + r(r(8) ? 12 : 40); n > 0; n--) out += run(r, special);
  return out.toWellFormed();
}

// Bytes that are often no UTF-8: text with bytes changed, left out or put in.
export function bytes(r, special) {
  const out = [...Buffer.from(text(r, special))];
  for (let n = 1 + r(6); n > 0; n--) {
    const at = r(out.length + 1);
    const byte = r(2) ? 0x80 + r(128) : r(256);
    out.splice(at, r(3) === 0 ? 1 : 0, ...(r(3) ? [byte] : []));
  }
  return Buffer.from(out);
}

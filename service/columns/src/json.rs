//! One JSON document at a time, read from its first byte to its last without a copy.
//!
//! Whatever is skipped is checked as what is read: nothing is passed over that is no JSON. `None` says of a document that
//! it is not read here, and nothing of why: most such are no JSON, and some are what other readers take differently.
//! 1. The text is UTF-8, all of it. So is what stands between two quotes, as no character has a quote's byte in it.
//! 2. The text may go on with other documents, into which one that has no end is read: it is found by where it ends.

use std::borrow::Cow;

/// As many lists and objects within another as are read. One bit each says which of them it is.
const DEEPEST: u32 = 63;

/// A block's bytes have a bit each.
const BLOCK: usize = 64;

/// Documents, one behind the other.
pub struct Text<'a> {
    bytes: &'a [u8],
    /// Of each block which bytes mean something within a string.
    telling: Vec<u64>,
}

impl<'a> Text<'a> {
    /// None where it is no UTF-8.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        str::from_utf8(bytes).ok()?;
        let (blocks, rest) = bytes.as_chunks();
        // What is missing in the last one is no text, as zeros are none.
        let mut last = [0; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let telling = blocks.iter().chain([&last]).map(telling).collect();
        Some(Self { bytes, telling })
    }
}

/// Stands somewhere in the text.
#[derive(Clone, Copy)]
pub struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    telling: &'a [u64],
}

/// What stands between two quotes, as it is written.
pub struct Quoted<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Scanner<'a> {
    /// At the beginning.
    pub fn new(text: &'a Text) -> Self {
        Self {
            text: text.bytes,
            telling: &text.telling,
            at: 0,
        }
    }

    /// Stand at the beginning of a document.
    pub fn begin(&mut self, at: usize) {
        self.at = at;
    }

    /// Whether a document that is to end there has come to its end.
    pub fn ends_at(&self, end: usize) -> bool {
        let rest = self.text.get(self.at..end);
        rest.is_some_and(|rest| rest.iter().all(is_space))
    }

    /// The next byte that is no white space; it stands there.
    #[inline(always)]
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            if byte > b' ' || !is_space(&byte) {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// The next byte that is no white space; it stands behind that.
    #[inline(always)]
    pub fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Pass over this byte, and no other.
    #[inline(always)]
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// Whether a list or an object that has just begun ends here; then it stands behind that.
    #[inline(always)]
    pub fn closes(&mut self, with: u8) -> Option<bool> {
        let closes = self.peek()? == with;
        self.at += usize::from(closes);
        Some(closes)
    }

    /// Whether another one follows in the list or object; it stands behind the comma, or behind the end.
    #[inline(always)]
    pub fn goes_on(&mut self, ends_with: u8) -> Option<bool> {
        match self.next()? {
            b',' => Some(true),
            byte if byte == ends_with => Some(false),
            _ => None,
        }
    }

    /// The name of a field as it is meant; it stands behind the colon.
    pub fn name(&mut self) -> Option<Cow<'a, [u8]>> {
        let name = self.string()?;
        self.expect(b':')?;
        if !name.escaped {
            return Some(Cow::Borrowed(name.raw));
        }
        let mut meant = Vec::new();
        name.push_to(&mut meant)?;
        Some(Cow::Owned(meant))
    }

    /// From before the name of a field to behind its colon.
    #[inline(always)]
    fn name_ends(&mut self) -> Option<()> {
        self.string()?;
        self.expect(b':')
    }

    /// `null`, `true` or `false`.
    #[inline(always)]
    pub fn word(&mut self, word: &[u8]) -> Option<()> {
        self.peek()?;
        self.text[self.at..].starts_with(word).then_some(())?;
        self.at += word.len();
        Some(())
    }

    fn literal(&mut self) -> Option<()> {
        self.word(b"null")
            .or_else(|| self.word(b"true"))
            .or_else(|| self.word(b"false"))
    }

    /// A string.
    #[inline(always)]
    pub fn string(&mut self) -> Option<Quoted<'a>> {
        self.expect(b'"')?;
        let start = self.at;
        let escaped = self.string_ends()?;
        Some(Quoted {
            raw: &self.text[start..self.at - 1],
            escaped,
        })
    }

    /// Where the first byte is from there on that means something within a string.
    #[inline(always)]
    fn told(&self, from: usize) -> Option<usize> {
        let mut block = from / BLOCK;
        let mut start = from;
        let mut bits = self.telling.get(block)? >> (from % BLOCK);
        while bits == 0 {
            block += 1;
            start = block * BLOCK;
            bits = *self.telling.get(block)?;
        }
        Some(start + bits.trailing_zeros() as usize)
    }

    /// From within a string to behind it. Whether there were escapes.
    #[inline(always)]
    fn string_ends(&mut self) -> Option<bool> {
        let mut escaped = false;
        loop {
            self.at = self.told(self.at)?;
            match *self.text.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(escaped);
                }
                b'\\' => {
                    self.at += escape(&self.text[self.at..])?.1;
                    escaped = true;
                }
                _ => return None,
            }
        }
    }

    /// A number, as it is written.
    pub fn number(&mut self) -> Option<&'a str> {
        self.peek()?;
        let start = self.at;
        self.number_ends()?;
        str::from_utf8(&self.text[start..self.at]).ok()
    }

    /// From before a number to behind it.
    #[inline(always)]
    fn number_ends(&mut self) -> Option<()> {
        let start = self.at;
        self.at += usize::from(self.text.get(start) == Some(&b'-'));
        let leading = self.at;
        let digits = self.digits()?;
        if digits > 1 && self.text[leading] == b'0' {
            return None;
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.text.get(self.at), Some(b'+' | b'-')));
            // pyarrow refuses one that no double holds, also in what is passed over. Those have three.
            if self.digits()? > 2 {
                return None;
            }
        }
        Some(())
    }

    #[inline(always)]
    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        (self.at > start).then_some(self.at - start)
    }

    /// Pass over a value of whatever kind.
    pub fn skip(&mut self) -> Option<()> {
        // A copy stays in registers: half of the time would be that of writing where it stands, and reading it.
        let mut copy = *self;
        copy.skip_here()?;
        *self = copy;
        Some(())
    }

    #[inline(always)]
    fn skip_here(&mut self) -> Option<()> {
        // Ones are objects and zeros lists, the innermost last; the first one bounds them.
        let mut within: u64 = 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    self.string_ends()?;
                }
                opens if opens == b'{' || opens == b'[' => {
                    self.at += 1;
                    let object = opens == b'{';
                    // `}` and `]` are two behind those that open.
                    if !self.closes(opens + 2)? {
                        if within.ilog2() == DEEPEST {
                            return None;
                        }
                        within = within << 1 | u64::from(object);
                        if object {
                            self.name_ends()?;
                        }
                        continue;
                    }
                }
                b'-' | b'0'..=b'9' => self.number_ends()?,
                _ => self.literal()?,
            }
            loop {
                if within == 1 {
                    return Some(());
                }
                let object = within & 1 == 1;
                if self.goes_on(if object { b'}' } else { b']' })? {
                    if object {
                        self.name_ends()?;
                    }
                    break;
                }
                within >>= 1;
            }
        }
    }
}

fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// A bit for each byte that is a quote, a backslash or a control character, the first one lowest.
fn telling(block: &[u8; BLOCK]) -> u64 {
    let flags = block.map(|byte| u8::from(byte == b'"' || byte == b'\\' || byte < b' '));
    let (eights, _) = flags.as_chunks();
    eights.iter().enumerate().fold(0, |bits, (at, eight)| {
        // Each flag ends up in the highest byte, in its own place, and none is carried there.
        let found = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits | found << (8 * at)
    })
}

/// What an escape means, and its length. `from`: the backslash and all behind it.
#[inline(never)]
fn escape(from: &[u8]) -> Option<(char, usize)> {
    let plain = match from.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let unit = unit(from)?;
            // What UTF-16 has in two units; alone, neither of them is a character.
            if let Some(found) = char::from_u32(unit.into()) {
                return Some((found, 6));
            }
            let pair = [unit, self::unit(&from[6..])?];
            return Some((char::decode_utf16(pair).next()?.ok()?, 12));
        }
        _ => return None,
    };
    Some((plain, 2))
}

/// The number in `\u0000`.
fn unit(from: &[u8]) -> Option<u16> {
    let digits = from.get(..6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| {
        Some(unit << 4 | char::from(*digit).to_digit(16)? as u16)
    })
}

impl Quoted<'_> {
    /// Append what is meant.
    pub fn push_to(&self, to: &mut Vec<u8>) -> Option<()> {
        let mut rest = self.raw;
        while self.escaped
            && let Some(at) = rest.iter().position(|byte| *byte == b'\\')
        {
            to.extend_from_slice(&rest[..at]);
            let (meant, length) = escape(&rest[at..])?;
            to.extend_from_slice(meant.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &rest[at + length..];
        }
        to.extend_from_slice(rest);
        Some(())
    }
}

//! One JSON document at a time, read from its first byte to its last without a copy.
//!
//! Whatever is skipped is checked as what is read: nothing is passed over that is no JSON. `None` says of a document that
//! it is not read here, and nothing of why: most such are no JSON, and some are what other readers take differently.
//! 1. The text is UTF-8, all of it. So is what stands between two quotes, as no character has a quote's byte in it.
//! 2. The text may go on with other documents, into which one that has no end is read: it is found by where it ends.

use std::borrow::Cow;

/// As many lists and objects within another as are read. One bit each says which of them it is.
const DEEPEST: u32 = 63;

/// So many bytes are looked at at once.
const STEP: usize = 16;

/// Documents, one behind the other.
pub struct Text<'a> {
    bytes: &'a [u8],
    /// A byte for each, of ones where it means something within a string, and of zeros elsewhere.
    telling: Vec<u8>,
}

impl<'a> Text<'a> {
    /// They end at `end`. None where they are no UTF-8.
    pub fn of(bytes: &'a [u8], end: usize) -> Option<Self> {
        let documents = bytes.get(..end)?;
        if !documents.is_ascii() {
            str::from_utf8(documents).ok()?;
        }
        let mut telling = Vec::with_capacity(end + STEP);
        telling.extend(documents.iter().map(|byte| {
            // Without branches many are done by one instruction.
            let tells = (*byte == b'"') | (*byte == b'\\') | (*byte < b' ');
            if tells { u8::MAX } else { 0 }
        }));
        // For whoever looks at the last one, and so many at once.
        telling.extend([0; STEP]);
        Some(Self { bytes, telling })
    }
}

/// Stands somewhere in the text.
#[derive(Clone, Copy)]
pub struct Scanner<'a> {
    text: &'a Text<'a>,
    at: usize,
}

/// What stands between two quotes, as it is written.
pub struct Quoted<'a> {
    raw: &'a [u8],
    /// The same, and all behind it.
    text: &'a [u8],
    escaped: bool,
}

impl<'a> Scanner<'a> {
    /// At the beginning of a document.
    pub fn new(text: &'a Text, at: usize) -> Self {
        Self { text, at }
    }

    /// Whether a document that is to end there has come to its end.
    pub fn ends_at(&self, end: usize) -> bool {
        let rest = self.text.bytes.get(self.at..end);
        rest.is_some_and(|rest| rest.iter().all(is_space))
    }

    /// The next byte that is no white space; it stands there.
    #[inline(always)]
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.bytes.get(self.at)?;
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

    /// Pass over the name of a field, and its colon.
    #[inline(always)]
    fn skip_name(&mut self) -> Option<()> {
        self.expect(b'"')?;
        self.at = self.string_end(self.at)?.0;
        self.expect(b':')
    }

    /// `null`, `true` or `false`.
    #[inline(always)]
    pub fn word(&mut self, word: &[u8]) -> Option<()> {
        self.peek()?;
        self.text.bytes[self.at..].starts_with(word).then_some(())?;
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
        let (end, escaped) = self.string_end(start)?;
        self.at = end;
        Some(Quoted {
            raw: &self.text.bytes[start..end - 1],
            text: &self.text.bytes[start..],
            escaped,
        })
    }

    /// Where a string ends, from within it: behind its quote. And whether there were escapes.
    #[inline(always)]
    fn string_end(&self, mut at: usize) -> Option<(usize, bool)> {
        let mut escaped = false;
        loop {
            let telling = u128::from_le_bytes(*self.text.telling.get(at..)?.first_chunk::<STEP>()?);
            if telling == 0 {
                at += STEP;
                continue;
            }
            at += telling.trailing_zeros() as usize / 8;
            match *self.text.bytes.get(at)? {
                b'"' => return Some((at + 1, escaped)),
                b'\\' => {
                    at += escape(&self.text.bytes[at..])?.1;
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
        self.at = self.number_end(start)?;
        str::from_utf8(&self.text.bytes[start..self.at]).ok()
    }

    /// A whole number: whether it has a minus, and the number without that.
    #[inline(always)]
    pub fn integer(&mut self) -> Option<(bool, u64)> {
        let negative = self.peek()? == b'-';
        let start = self.at;
        self.at = self.number_end(start)?;
        let digits = &self.text.bytes[start + usize::from(negative)..self.at];
        let found = digits.iter().try_fold(0_u64, |found, byte| {
            // A fraction and an exponent have others than digits.
            let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
            found.checked_mul(10)?.checked_add(digit.into())
        })?;
        Some((negative, found))
    }

    /// Where a number ends that begins there.
    #[inline(always)]
    fn number_end(&self, start: usize) -> Option<usize> {
        // Branches: what comes behind a number would wait for a sign that is added.
        match self.text.bytes.get(start)? {
            b'-' => self.unsigned_end(start + 1),
            _ => self.unsigned_end(start),
        }
    }

    #[inline(always)]
    fn unsigned_end(&self, whole: usize) -> Option<usize> {
        let mut end = self.digits_end(whole)?;
        if end > whole + 1 && self.text.bytes[whole] == b'0' {
            return None;
        }
        if self.text.bytes.get(end) == Some(&b'.') {
            end = self.digits_end(end + 1)?;
        }
        if matches!(self.text.bytes.get(end), Some(b'e' | b'E')) {
            let signed = matches!(self.text.bytes.get(end + 1), Some(b'+' | b'-'));
            let exponent = end + 1 + usize::from(signed);
            end = self.digits_end(exponent)?;
            // pyarrow refuses one that no double holds, also in what is passed over. Those have three.
            if end > exponent + 2 {
                return None;
            }
        }
        Some(end)
    }

    /// None where there are none.
    #[inline(always)]
    fn digits_end(&self, start: usize) -> Option<usize> {
        let mut end = start;
        while self.text.bytes.get(end).is_some_and(u8::is_ascii_digit) {
            end += 1;
        }
        (end > start).then_some(end)
    }

    /// Where a value ends that begins there, and is neither a list nor an object.
    #[inline(always)]
    fn scalar_end(&self, at: usize) -> Option<usize> {
        match *self.text.bytes.get(at)? {
            b'"' => Some(self.string_end(at + 1)?.0),
            b'-' | b'0'..=b'9' => self.number_end(at),
            _ => {
                let mut word = Self { at, ..*self };
                word.literal()?;
                Some(word.at)
            }
        }
    }

    /// Pass over what is before the next scalar, where there is one before the end.
    fn skip_to_scalar(&mut self, end: usize) {
        while self.at < end {
            match self.text.bytes[self.at] {
                b'"' => {
                    let mut name = *self;
                    if name.skip_name().is_none() {
                        return;
                    }
                    *self = name;
                }
                b'{' | b'}' | b'[' | b']' | b',' => self.at += 1,
                byte if is_space(&byte) => self.at += 1,
                _ => return,
            }
        }
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
                b'"' => self.at = self.string_end(self.at + 1)?.0,
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
                            self.skip_name()?;
                        }
                        continue;
                    }
                }
                b'-' | b'0'..=b'9' => self.at = self.number_end(self.at)?,
                _ => self.literal()?,
            }
            loop {
                if within == 1 {
                    return Some(());
                }
                let object = within & 1 == 1;
                if self.goes_on(if object { b'}' } else { b']' })? {
                    if object {
                        self.skip_name()?;
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
    #[inline(always)]
    pub fn push_to(&self, to: &mut Vec<u8>) -> Option<()> {
        // Most are short: what has the same length each time is copied by two instructions.
        if self.raw.len() <= STEP
            && !self.escaped
            && let Some(more) = self.text.first_chunk::<STEP>()
        {
            let end = to.len() + self.raw.len();
            to.extend_from_slice(more);
            to.truncate(end);
            return Some(());
        }
        self.push_all_to(to)
    }

    #[inline(never)]
    fn push_all_to(&self, to: &mut Vec<u8>) -> Option<()> {
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

/// What stood between the scalars of objects: whoever writes objects writes the same there again and again, which is
/// compared in a fraction of the time of reading it. A scalar is a string that is no name, a number, `null`, `true` or
/// `false`.
///
/// 1. Of two texts that are the same but for their scalars, both are JSON, or neither is. So what has been read once is
///    remembered, and what is like it is passed over; its scalars are read.
/// 2. What is not like it is read from where the last field was that is wanted: nothing is refused here.
/// 3. What is remembered is bounded, and all of it is forgotten where it seldom helps: names may be as many as values.
pub struct Shapes {
    /// A tree: behind each piece stand those that have followed it. The first one is empty, and stands before an object.
    pieces: Vec<Piece>,
    /// How often something was new.
    news: usize,
}

const MOST_PIECES: usize = 1024;

/// As many pieces stand behind the same one.
const MOST_BRANCHES: usize = 8;

/// So often something is new before it matters that it is so in more than half of the objects.
const MOST_NEWS: usize = 64;

/// A piece that was the last one: by it is known what was before. `LOST` where that is not remembered.
pub type Place = usize;

const LOST: Place = usize::MAX;

/// Some bytes, and what follows them.
struct Piece {
    bytes: u128,
    /// Ones for as many bytes as there are.
    mask: u128,
    length: usize,
    then: Then,
    /// The first one of those behind it, and the next one of those that stand where it does. 0: there is none.
    inner: Place,
    other: Place,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    More,
    Scalar,
    /// A field that is wanted, or the end of the object.
    Wanted(Option<usize>),
}

impl Shapes {
    /// The place before an object.
    pub const START: Place = 0;

    /// Of no object yet.
    pub fn new() -> Self {
        let start = Piece {
            bytes: 0,
            mask: 0,
            length: 0,
            then: Then::More,
            inner: 0,
            other: 0,
        };
        Self {
            pieces: vec![start],
            news: 0,
        }
    }

    /// Pass over what is before the value of the next field that is wanted, or before the end of the object and that; and
    /// the place there. None where it is new: then it stands where it stood.
    #[inline(always)]
    pub fn follow(&self, place: Place, from: &mut Scanner) -> Option<(Option<usize>, Place)> {
        let mut next = self.pieces.get(place)?.inner;
        let mut at = from.at;
        while next != 0 {
            let piece = &self.pieces[next];
            let bytes = u128::from_le_bytes(*from.text.bytes.get(at..)?.first_chunk()?);
            let behind = if (bytes ^ piece.bytes) & piece.mask != 0 {
                None
            } else if piece.then == Then::Scalar {
                from.scalar_end(at + piece.length)
            } else {
                Some(at + piece.length)
            };
            let Some(behind) = behind else {
                next = piece.other;
                continue;
            };
            at = behind;
            if let Then::Wanted(found) = piece.then {
                from.at = at;
                return Some((found, next));
            }
            next = piece.inner;
        }
        None
    }

    /// Remember what was new, and has been found to be JSON. `objects`: how many have been read.
    #[cold]
    pub fn learn(
        &mut self,
        mut place: Place,
        mut from: Scanner,
        to: &Scanner,
        wanted: Option<usize>,
        objects: usize,
    ) -> Place {
        self.news += 1;
        if self.news > MOST_NEWS && self.news > objects / 2 {
            self.pieces.clear();
        }
        while place < self.pieces.len() && from.at < to.at {
            let start = from.at;
            from.skip_to_scalar(to.at);
            let then = if from.at < to.at {
                Then::Scalar
            } else {
                Then::Wanted(wanted)
            };
            let mut pieces = from.text.bytes[start..from.at].chunks(STEP).peekable();
            while let Some(piece) = pieces.next() {
                let then = pieces.peek().map_or(then, |_| Then::More);
                place = self.put(place, piece, then);
            }
            from.at = from.scalar_end(from.at).unwrap_or(to.at);
        }
        place
    }

    /// The place behind that piece, which is put there where it is not yet.
    fn put(&mut self, place: Place, piece: &[u8], then: Then) -> Place {
        let Some(first) = self.pieces.get(place).map(|before| before.inner) else {
            return LOST;
        };
        let mut bytes = [0; STEP];
        bytes[..piece.len()].copy_from_slice(piece);
        let bytes = u128::from_le_bytes(bytes);
        let mut branches = 0;
        let mut next = first;
        while next != 0 {
            let known = &self.pieces[next];
            if (known.bytes, known.length, known.then) == (bytes, piece.len(), then) {
                return next;
            }
            branches += 1;
            next = known.other;
        }
        let new = self.pieces.len();
        if branches == MOST_BRANCHES || new == MOST_PIECES {
            return LOST;
        }
        self.pieces.push(Piece {
            bytes,
            mask: u128::MAX >> (8 * (STEP - piece.len())),
            length: piece.len(),
            then,
            inner: 0,
            other: first,
        });
        self.pieces[place].inner = new;
        new
    }
}

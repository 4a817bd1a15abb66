//! (pure) Inputs made of others.

/// Longest input.
const MAXIMUM: usize = 4096;

/// Numbers by chance (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One below that, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// One of the inputs, changed in a few places.
pub fn mutate(inputs: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    // What was found last leads on most often.
    let recent = inputs.len().min(16);
    let mut input = match random.below(2) {
        0 => random.pick(inputs).clone(),
        _ => inputs[inputs.len() - 1 - random.below(recent)].clone(),
    };
    for _ in 0..=random.below(4) {
        change(&mut input, inputs, words, random);
    }
    input.truncate(MAXIMUM);
    input
}

fn change(input: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[&str], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let end = (at + random.below(16)).min(input.len());
    match random.below(10) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = *random.pick(b"\0\t\n\r \"',-.:/0129Az[]{}\x7f\xff&*"),
        2 => input.insert(at, random.next() as u8),
        3 => drop(input.drain(at..end)),
        4 => input.truncate(at),
        5 => {
            let copy = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, copy.repeat(1 + random.below(8)));
        }
        6 | 7 if !words.is_empty() => {
            let word = random.pick(words).bytes();
            let end = if random.below(2) == 0 { at } else { end };
            drop(input.splice(at..end, word));
        }
        8 => {
            let other = random.pick(inputs);
            let from = random.below(other.len() + 1);
            let to = from + random.below(other.len() - from + 1);
            drop(input.splice(at..end, other[from..to].iter().copied()));
        }
        _ => number(input, at, random),
    }
}

/// The next number in it becomes another one.
fn number(input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(begin) = input[at..].iter().position(u8::is_ascii_digit).map(|from| at + from) else { return };
    let length = input[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let other = match random.below(4) {
        0 => random.below(10).to_string(),
        1 => (1u128 << random.below(128)).to_string(),
        2 => ((1u128 << random.below(128)) - 1).to_string(),
        _ => random.next().to_string(),
    };
    input.splice(begin..begin + length, other.into_bytes());
}

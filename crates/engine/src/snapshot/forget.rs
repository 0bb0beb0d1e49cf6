//! The body of a snapshot's forgetting.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

#[cfg(test)]
use crate::codec::Decoded;
use crate::codec::put_timestamp;
use crate::snapshot::format::{TEXT_LEN_MAX, field};
#[cfg(test)]
use crate::snapshot::format::{fields, text};
use crate::types::Timestamp;

const TAG_FORGET_TIME: u8 = 135;
const TAG_FORGET_HOSTNAME: u8 = 136;
const TAG_FORGET_USERNAME: u8 = 137;
const TAG_FORGET_RULES: u8 = 138;

/// The body of a snapshot's forgetting: notes for people. The name of the object is what counts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ForgetBody {
    /// When it was forgotten.
    pub time: Timestamp,
    /// On which host.
    pub hostname: String,
    /// By which user.
    pub username: String,
    /// The policy, or why else.
    pub rules: String,
}

impl ForgetBody {
    /// Returns the encoded form. Texts that are too long are cut.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        field(&mut out, TAG_FORGET_TIME, |out| put_timestamp(out, self.time));
        let texts = [
            (TAG_FORGET_HOSTNAME, &self.hostname),
            (TAG_FORGET_USERNAME, &self.username),
            (TAG_FORGET_RULES, &self.rules),
        ];
        for (tag, text) in texts {
            let text = text.get(..text.floor_char_boundary(TEXT_LEN_MAX)).unwrap_or_default();
            field(&mut out, tag, |out| out.extend_from_slice(text.as_bytes()));
        }
        out
    }

    /// Reads the encoded form.
    #[cfg(test)]
    pub(crate) fn decode(body: &[u8]) -> Decoded<Self> {
        let mut forget = Self::default();
        fields(body, |tag, value| {
            match tag {
                TAG_FORGET_TIME => forget.time = value.timestamp()?,
                TAG_FORGET_HOSTNAME => forget.hostname = text(value)?,
                TAG_FORGET_USERNAME => forget.username = text(value)?,
                TAG_FORGET_RULES => forget.rules = text(value)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(forget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgetting_comes_back_and_a_long_text_is_cut() {
        let rules = "\u{fc}".repeat(TEXT_LEN_MAX);
        let forget = ForgetBody { hostname: "h".into(), username: "u".into(), rules, ..ForgetBody::default() };
        let decoded = ForgetBody::decode(&forget.encode()).unwrap();
        assert_eq!(decoded.rules.len(), TEXT_LEN_MAX);
        assert_eq!(ForgetBody { rules: forget.rules.clone(), ..decoded }, forget);
        assert_eq!(ForgetBody::decode(&[]), Ok(ForgetBody::default()), "an empty body is fine");
    }
}

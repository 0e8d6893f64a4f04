// SPDX-License-Identifier: Apache-2.0
//! Transactions as lines of text.

use transactions::store::{Running, Shards, Stop, Store};

enum Operation<'a> {
    Get(&'a str),
    Put(&'a str, &'a str),
    Append(&'a str, &'a str),
}

/// Executes the transaction of a line, and returns the line that answers it.
pub fn execute(store: &mut Store<impl Shards>, line: &str) -> String {
    let Some(operations) = parse(line) else {
        return "refused: a line has operations: get KEY, put KEY VALUE, append KEY WORD"
            .to_owned();
    };
    match store.transact(|transaction| perform(transaction, &operations)) {
        Ok(read) => ["committed".to_owned()]
            .into_iter()
            .chain(read)
            .collect::<Vec<_>>()
            .join(" "),
        Err(error) => format!("failed: {error}"),
    }
}

fn parse(line: &str) -> Option<Vec<Operation<'_>>> {
    let mut words = line.split_whitespace();
    let mut operations = Vec::new();
    while let Some(word) = words.next() {
        operations.push(match word {
            "get" => Operation::Get(words.next()?),
            "put" => Operation::Put(words.next()?, words.next()?),
            "append" => Operation::Append(words.next()?, words.next()?),
            _ => return None,
        });
    }
    (!operations.is_empty()).then_some(operations)
}

/// Returns `KEY=VALUE` for each get.
fn perform(
    transaction: &mut Running<'_, impl Shards>,
    operations: &[Operation<'_>],
) -> Result<Vec<String>, Stop> {
    let reads = operations.iter().filter_map(|operation| match operation {
        Operation::Get(key) | Operation::Append(key, _) => Some(key.as_bytes()),
        Operation::Put(..) => None,
    });
    // All are read at once.
    transaction.get_all(&reads.collect::<Vec<_>>())?;
    let mut found = Vec::new();
    for operation in operations {
        match operation {
            Operation::Get(key) => {
                let value = transaction.get(key.as_bytes())?.unwrap_or_default();
                found.push(format!("{key}={}", String::from_utf8_lossy(&value)));
            }
            Operation::Put(key, value) => transaction.put(key.as_bytes(), value.as_bytes()),
            Operation::Append(key, word) => {
                let value = match transaction.get(key.as_bytes())? {
                    Some(old) => [&old, &b","[..], word.as_bytes()].concat(),
                    None => word.as_bytes().to_vec(),
                };
                transaction.put(key.as_bytes(), &value);
            }
        }
    }
    Ok(found)
}

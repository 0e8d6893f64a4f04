// SPDX-License-Identifier: Apache-2.0
//! Tests of files of users, and of what their users may do.

use super::*;
use crate::users::user::Described;

const KNOWN: [&str; 8] = [
    "get",
    "set",
    "config",
    "flushall",
    "subscribe",
    "@read",
    "@write",
    "@dangerous",
];

fn parsed(text: &str) -> Result<Vec<User>, String> {
    parse(text, &|name| {
        let is_known = KNOWN.contains(&name);
        (!is_known).then(|| format!("there is no {name}"))
    })
}

fn one(rules: &str) -> User {
    parsed(&format!("user alice {rules}")).unwrap().remove(0)
}

fn may_run(user: &User, name: &str, sub: Option<&str>, categories: &[&str]) -> bool {
    user.may_run(&Described {
        name,
        sub: sub.map(str::as_bytes),
        categories: categories.to_vec(),
    })
}

fn refused(text: &str, why: &str) {
    let error = parsed(text).unwrap_err();
    assert!(error.contains(why), "{text}: {error}");
}

#[test]
fn a_new_user_may_do_nothing() {
    let user = one("");
    assert!(!user.is_on() && !user.is_open());
    assert!(!user.accepts(&hash("")));
    assert!(!may_run(&user, "get", None, &["read"]));
    assert!(!user.may_touch(b"key") && !user.may_hear(b"news"));
}

#[test]
fn the_last_rule_about_a_command_decides() {
    let user = one("on +@read -get +config|get");
    assert!(may_run(&user, "mget", None, &["read"]));
    assert!(!may_run(&user, "get", None, &["read"]));
    assert!(!may_run(&user, "set", None, &["write"]));
    assert!(may_run(&user, "config", Some("GET"), &["dangerous"]));
    assert!(!may_run(&user, "config", Some("set"), &["dangerous"]));
    assert!(!may_run(&user, "config", None, &["dangerous"]));

    let user = one("on -get +@all -@dangerous");
    assert!(may_run(&user, "get", None, &["read"]));
    assert!(!may_run(&user, "flushall", None, &["write", "dangerous"]));
    assert!(!user.may_everything());
    assert!(one("on ~* &* +@all").may_everything());
    for less in [
        "~a* &* +@all",
        "~* &a* +@all",
        "~* &* +@all -get",
        "~* &* +@all -@all",
    ] {
        assert!(!one(&format!("on {less}")).may_everything(), "{less}");
    }
}

#[test]
fn keys_and_channels_match_patterns() {
    let user = one("on ~cache:* ~user:[0-9] &news.* +@read");
    assert!(user.may_touch(b"cache:1") && user.may_touch(b"user:7"));
    assert!(!user.may_touch(b"user:77") && !user.may_touch(b"other"));
    assert!(user.may_hear(b"news.sport") && !user.may_hear(b"olds"));
    assert!(user.may_hear_pattern(b"news.*") && !user.may_hear_pattern(b"news.s*"));
    assert!(one("on allchannels").may_hear_pattern(b"anything*"));
}

#[test]
fn passwords_are_any_of_the_users_own() {
    let hashed = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
    let user = one(&format!("on >secret #{hashed}"));
    assert!(user.accepts(&hash("secret")) && user.accepts(&hash("password")));
    assert!(!user.accepts(&hash("other")));
    assert!(!one("on >secret <secret").accepts(&hash("secret")));
    assert!(one("on >secret nopass").accepts(&hash("anything")));
    assert!(!one("on nopass >secret").accepts(&hash("anything")));
    let shown = user.shown();
    assert!(
        !shown.contains("secret") && shown.contains(hashed),
        "{shown}"
    );
    let again = parsed(&shown).unwrap();
    assert_eq!(again, [user]);
}

#[test]
fn what_is_wrong_is_refused_with_its_line_and_without_passwords() {
    refused("", "names no user");
    refused("# only a remark\n", "names no user");
    refused(
        "user a on\nalice on",
        "line 2: it doesn't begin with `user NAME`",
    );
    refused(
        "user a on\n\nuser a off",
        "line 3: this user is there twice",
    );
    refused("user a +gte", "`+gte`: there is no gte");
    refused("user a -@dangerus", "`-@dangerus`: there is no @dangerus");
    refused("user a +@read|x", "no subcommands");
    refused("user a %R~x", "aren't available");
    refused("user a (~x +get)", "aren't available");
    refused("user a secret", "no rule of Redis's ACL");
    refused("user a ~", "a pattern is missing");
    refused(&format!("user a ~{}", "x".repeat(1_025)), "1025 bytes");
    let error = parsed("user a #hidden").unwrap_err();
    assert!(
        error.contains("64 hexadecimal digits") && !error.contains("hidden"),
        "{error}"
    );
}

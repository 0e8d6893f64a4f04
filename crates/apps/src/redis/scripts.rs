// SPDX-License-Identifier: Apache-2.0
//! The commands that scripts and functions may call. The preloaded library refuses all others, and
//! sorts answers whose order depends on a table's layout (`programs/preload/scripts.h`).
//!
//! A script may write what it has read. So it may read nothing that can differ between replicas
//! with equal contents: nothing that depends on the order within tables, on expired keys that are
//! still there, or on how values are stored. Answers that depend on the time don't differ.

use super::catalogue::Catalogue;

/// The callable commands, by the version of Redis that introduced or last changed them. Commands of
/// later versions are refused until somebody has read how they are executed, and has added them
/// here.
const LISTS: [&str; 1] = [
    // 7.0
    "append=w bitcount=r bitfield=w bitfield_ro=r bitop=w bitpos=r blmpop=w bzmpop=w copy=c decr=w \
     decrby=w del=w echo=r exists=r expire=w expireat=w expiretime=r flushdb=w geoadd=w geodist=r \
     geohash=r geopos=r georadius=w georadius_ro=r georadiusbymember=w georadiusbymember_ro=r \
     geosearch=r geosearchstore=w get=r getbit=r getdel=w getex=w getrange=r getset=w hdel=w \
     hexists=r hget=r hgetall=s hincrby=w hincrbyfloat=w hkeys=s hlen=r hmget=r hmset=w hset=w \
     hsetnx=w hstrlen=r hvals=s incr=w incrby=w incrbyfloat=w keys=s lcs=r lindex=r linsert=w \
     llen=r lmove=w lmpop=w lpop=w lpos=r lpush=w lpushx=w lrange=r lrem=w lset=w ltrim=w memory=m \
     mget=r mset=w msetnx=w persist=w pexpire=w pexpireat=w pexpiretime=r pfadd=w pfcount=r \
     pfmerge=w ping=r psetex=w pttl=r publish=w rename=w renamenx=w restore=w rpop=w rpoplpush=w \
     rpush=w rpushx=w sadd=w scard=r sdiff=s sdiffstore=w set=w setbit=w setex=w setnx=w \
     setrange=w sinter=s sintercard=r sinterstore=w sismember=r smembers=s smismember=r smove=w \
     sort=o sort_ro=o srem=w strlen=r substr=r sunion=s sunionstore=w time=r touch=r ttl=r type=r \
     unlink=w xack=w xadd=w xautoclaim=w xclaim=w xdel=w xgroup=w xinfo=i xlen=r xpending=r \
     xrange=r xread=r xreadgroup=w xrevrange=r xsetid=w xtrim=w zadd=w zcard=r zcount=r zdiff=r \
     zdiffstore=w zincrby=w zinter=r zintercard=r zinterstore=w zlexcount=r zmpop=w zmscore=r \
     zpopmax=w zpopmin=w zrange=r zrangebylex=r zrangebyscore=r zrangestore=w zrank=r zrem=w \
     zremrangebylex=w zremrangebyrank=w zremrangebyscore=w zrevrange=r zrevrangebylex=r \
     zrevrangebyscore=r zrevrank=r zscore=r zunion=r zunionstore=w",
];

/// Returns the library's rule for each command of a server.
pub(super) fn rules(catalogue: &Catalogue) -> Vec<String> {
    let is_whole = |name: &str| !name.contains('|');
    let whole = catalogue.specs().filter(|spec| is_whole(&spec.name));
    let rules = whole.map(|spec| match spec.is_unagreed {
        true => format!("{}=u", spec.name),
        false => rule(&spec.name),
    });
    rules.collect()
}

fn rule(name: &str) -> String {
    let all = LISTS.iter().flat_map(|list| list.split_ascii_whitespace());
    let mut own = all.filter(|rule| rule.split('=').next() == Some(name));
    own.next()
        .map_or_else(|| format!("{name}=x"), str::to_owned)
}

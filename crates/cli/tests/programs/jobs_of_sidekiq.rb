# SPDX-License-Identifier: Apache-2.0
# Sidekiq's worker is at one replica, and its client at another one: jobs now, in bulk, later, and one that is repeated
# after an error.
require "sidekiq"
require "sidekiq/api"

CLIENT_AT, WORKER_AT = ENV["REPLICAS"]&.split || ARGV
Sidekiq.configure_client { |config| config.redis = { url: "redis://#{CLIENT_AT}" } }
Sidekiq.configure_server do |config|
  config.redis = { url: "redis://#{WORKER_AT}" }
  config.average_scheduled_poll_interval = 1
end

class Add
  include Sidekiq::Worker
  sidekiq_options retry: 3
  sidekiq_retry_in { 1 }

  def perform(number, fails)
    tries = Sidekiq.redis { |redis| redis.incr("tries:#{number}") }
    raise "again" if tries <= fails
    Sidekiq.redis { |redis| redis.incrby("total", number) }
  end
end

# Sidekiq's own program loads this file, too.
unless defined?(Sidekiq::CLI)
  Sidekiq::Client.push_bulk("class" => Add, "args" => (1..20).map { |n| [n, 0] })
  Add.perform_async(100, 1)
  Add.perform_in(2, 1000, 0)
  command = ["sidekiq", "-r", File.expand_path(__FILE__), "-c", "2", "-e", "production"]
  worker = Process.spawn({ "REPLICAS" => ARGV.join(" ") }, *command, out: File::NULL, err: File::NULL)
  begin
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 100
    until (total = Sidekiq.redis { |redis| redis.get("total").to_i }) == 1310
      abort "the total is #{total}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      sleep 0.1
    end
  ensure
    Process.kill("TERM", worker)
    Process.wait(worker)
  end
  processed = Sidekiq::Stats.new.processed
  abort "#{processed} jobs" unless processed == 23
end

package wirehouse;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hive.service.cli.CLIService;
import org.apache.hive.service.cli.HiveSQLException;
import org.apache.hive.service.cli.SessionHandle;
import org.apache.hive.service.cli.operation.OperationManager;
import org.apache.hive.service.cli.session.HiveSession;
import org.apache.hive.service.cli.session.SessionManager;
import org.apache.hive.service.cli.thrift.ThriftBinaryCLIService;
import org.apache.hive.service.rpc.thrift.TProtocolVersion;
import org.apache.hive.service.server.HiveServer2;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.hive.HiveUtils$;
import org.apache.spark.sql.hive.thriftserver.HiveThriftServer2;
import org.apache.spark.sql.hive.thriftserver.HiveThriftServer2$;
import org.apache.thrift.server.TServer;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.TTransportException;
import org.apache.thrift.transport.TTransportFactory;

/**
 * Spark's Thrift server whose clients choose no settings. What a client sends when it connects goes to Hive, which would
 * set properties of this JVM, make classes of any name and read the environment by it.
 */
public class SqlServer {
    private static final String DATABASE = "use:database";

    /**
     * Start the server over `session`, which alone may do more than read. Clients that take longer than so many seconds
     * to log in, or say nothing for so many after that, are let go of.
     */
    public static HiveThriftServer2 start(SparkSession session, int loginSeconds, int idleSeconds) throws Exception {
        ReadOnly.free(session);
        SparkContext context = session.sparkContext();
        HiveConf settings =
            HiveUtils$.MODULE$.newClientForExecution(context.conf(), session.sessionState().newHadoopConf()).conf();
        // At the end of each session Hive would make a metastore of its own, to ask it whether it is one, and the client
        // waits seconds for it. Where this says there is none it gives up at once.
        settings.setVar(HiveConf.ConfVars.METASTOREURIS, "none");
        HiveThriftServer2 server = new HiveThriftServer2(session);
        server.init(settings);
        guard(server);
        // Its listener comes first: a client may connect as soon as the server is started.
        Method listen = HiveThriftServer2$.class.getDeclaredMethod(
            "createListenerAndUI", new Class[] {HiveThriftServer2.class, SparkContext.class});
        listen.setAccessible(true);
        listen.invoke(HiveThriftServer2$.MODULE$, new Object[] {server, context});
        server.start();
        letGoOfTheSilent(server, 1000 * loginSeconds, 1000 * idleSeconds);
        return server;
    }

    private static void guard(HiveThriftServer2 server) throws Exception {
        Object served = field(HiveServer2.class, "cliService").get(server);
        Field sessions = field(CLIService.class, "sessionManager");
        sessions.set(served, new Sessions(server, (SessionManager) sessions.get(served)));
    }

    /** Each client holds one of the server's threads, and Hive's settings for that are no longer read. */
    private static void letGoOfTheSilent(HiveThriftServer2 server, int loginMs, int idleMs) throws Exception {
        Object service = field(HiveServer2.class, "thriftCLIService").get(server);
        Object threads = field(ThriftBinaryCLIService.class, "server").get(service);
        field(TServerSocket.class, "clientTimeout_").setInt(field(TServer.class, "serverTransport_").get(threads), loginMs);
        Field login = field(TServer.class, "inputTransportFactory_");
        login.set(threads, new Login((TTransportFactory) login.get(threads), idleMs));
    }

    private static Field field(Class of, String name) throws Exception {
        Field found = of.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    /** Another one's logins; after each the client may be silent for longer. */
    static class Login extends TTransportFactory {
        private final TTransportFactory login;
        private final int idleMs;

        Login(TTransportFactory login, int idleMs) {
            this.login = login;
            this.idleMs = idleMs;
        }

        @Override
        public TTransport getTransport(TTransport client) throws TTransportException {
            TTransport in = this.login.getTransport(client);
            ((TSocket) client).setTimeout(this.idleMs);
            return in;
        }
    }

    /** Sessions of another manager, with the server's settings alone. */
    static class Sessions extends SessionManager {
        private final SessionManager manager;

        Sessions(HiveServer2 server, SessionManager manager) {
            super(server);
            this.manager = manager;
        }

        @Override
        public SessionHandle openSession(
            TProtocolVersion protocol, String user, String password, String address, Map asked, boolean asUser,
            String token) throws HiveSQLException {
            Map kept = new HashMap();
            if (asked != null && asked.containsKey(DATABASE)) {
                kept.put(DATABASE, asked.get(DATABASE));
            }
            return this.manager.openSession(protocol, user, password, address, kept, false, null);
        }

        @Override
        public void closeSession(SessionHandle handle) throws HiveSQLException {
            this.manager.closeSession(handle);
        }

        @Override
        public HiveSession getSession(SessionHandle handle) throws HiveSQLException {
            return this.manager.getSession(handle);
        }

        @Override
        public OperationManager getOperationManager() {
            return this.manager.getOperationManager();
        }

        @Override
        public Future submitBackgroundOperation(Runnable operation) {
            return this.manager.submitBackgroundOperation(operation);
        }

        @Override
        public int getOpenSessionCount() {
            return this.manager.getOpenSessionCount();
        }
    }
}

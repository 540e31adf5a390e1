package wirehouse;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTable;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableOrView;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedView;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.Product;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/**
 * Restricts clients of the SQL server to reading the registered tables. A statement is checked after it is parsed and
 * before anything in it is resolved or run. Plan nodes are allow-listed. Tables outside of the layers are refused, and so
 * are functions that reach outside of the data. The session that sets up the server is not restricted.
 */
public class ReadOnly extends AbstractFunction1 {
    private static final Set PLANS = set(
        // Queries.
        "Aggregate AsOfJoin CTERelationDef CTERelationRef Deduplicate Distinct Except Expand Filter Generate GlobalLimit"
            + " InlineTable Intersect Join LateralJoin LocalLimit LocalRelation Offset OneRowRelation PipeOperator Pivot"
            + " Project RelationTimeTravel Repartition RepartitionByExpression Sample Sort Subquery SubqueryAlias Tail"
            + " Union UnionLoop Unpivot UnresolvedHaving UnresolvedHint UnresolvedInlineTable UnresolvedRelation"
            + " UnresolvedSubqueryColumnAliases UnresolvedTableValuedFunction UnresolvedTVFAliases UnresolvedWith View"
            + " Window WithCTE WithWindowDefinition"
            // Looking at what there is.
            + " CurrentNamespace$ DescribeColumn DescribeFunction DescribeNamespace DescribeQueryCommand"
            + " DescribeRelation ExplainCommand SetCatalogAndNamespace ShowCatalogsCommand ShowColumns ShowCreateTable"
            + " ShowCurrentNamespaceCommand ShowFunctions ShowNamespacesCommand ShowPartitions ShowTableProperties"
            + " ShowTables ShowTablesExtended ShowViews UnresolvedAttribute UnresolvedFunctionName UnresolvedNamespace"
            + " UnresolvedTable UnresolvedTableOrView UnresolvedView");
    private static final Set TABLE_FUNCTIONS = set(
        "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range sql_keywords stack");
    /** They run Java, read files, take a place of one among their options, or fetch what their XML names. */
    private static final Set REACHING_OUT = set(
        "reflect java_method try_reflect from_avro to_avro schema_of_avro from_protobuf to_protobuf from_xml to_xml"
            + " schema_of_xml xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short"
            + " xpath_string");
    private static final Set LAYERS = set("bronze silver gold");
    private static SparkSession free;

    /** The session that may do everything; the first one says so for itself. */
    public static synchronized void free(SparkSession session) {
        if (free != null) {
            throw new SecurityException("another session sets up the server");
        }
        free = session;
    }

    private static synchronized boolean isFree(SparkSession session) {
        // Until one is named, nobody else is there.
        return free == null || free == session;
    }

    private static Set set(String words) {
        return new HashSet(Arrays.asList(words.split(" ")));
    }

    @Override
    public Object apply(Object extensions) {
        ((SparkSessionExtensions) extensions).injectParser(new AbstractFunction2() {
            @Override
            public Object apply(Object session, Object parser) {
                return new Parser((SparkSession) session, (ParserInterface) parser);
            }
        });
        return BoxedUnit.UNIT;
    }

    private static void refuse(String what) {
        throw new SecurityException("this server only reads the lake's tables: " + what);
    }

    /** Look at a part of a statement and at all parts of it, whatever they are called there. */
    static void check(Object part) {
        if (part instanceof LogicalPlan) {
            checkPlan((LogicalPlan) part);
        } else if (part instanceof Expression) {
            checkExpression((Expression) part);
        }
        if (part instanceof scala.collection.Iterable) {
            checkAll(((scala.collection.Iterable) part).iterator());
        } else if (part instanceof Product) {
            checkAll(((Product) part).productIterator());
        }
    }

    private static void checkAll(Iterator parts) {
        while (parts.hasNext()) {
            check(parts.next());
        }
    }

    private static void checkPlan(LogicalPlan plan) {
        String kind = plan.getClass().getSimpleName();
        if (!PLANS.contains(kind)) {
            refuse("not " + kind);
        }
        if (plan instanceof UnresolvedRelation) {
            UnresolvedRelation table = (UnresolvedRelation) plan;
            checkName(table.multipartIdentifier());
            if (!table.options().isEmpty()) {
                refuse("options of a table are the server's");
            }
        } else if (plan instanceof UnresolvedTableOrView) {
            checkName(((UnresolvedTableOrView) plan).multipartIdentifier());
        } else if (plan instanceof UnresolvedTable) {
            checkName(((UnresolvedTable) plan).multipartIdentifier());
        } else if (plan instanceof UnresolvedView) {
            checkName(((UnresolvedView) plan).multipartIdentifier());
        } else if (plan instanceof UnresolvedTableValuedFunction) {
            String name = last(((UnresolvedTableValuedFunction) plan).name());
            if (!TABLE_FUNCTIONS.contains(name)) {
                refuse("the function " + name + " is not one of its own");
            }
        }
    }

    /** NAME, LAYER.NAME or spark_catalog.LAYER.NAME. */
    private static void checkName(Seq name) {
        int parts = name.size();
        boolean known = parts == 1
            || parts == 2 && LAYERS.contains(part(name, 0))
            || parts == 3 && "spark_catalog".equals(part(name, 0)) && LAYERS.contains(part(name, 1));
        if (!known) {
            refuse("there is no table " + name.mkString("."));
        }
    }

    private static void checkExpression(Expression expression) {
        String kind = expression.getClass().getSimpleName();
        if (kind.equals("ExpressionWithUnresolvedIdentifier")) {
            refuse("names are written, not computed");
        }
        String name = "";
        if (expression instanceof UnresolvedFunction) {
            name = last(((UnresolvedFunction) expression).nameParts());
        } else if (expression instanceof UnresolvedGenerator) {
            name = ((UnresolvedGenerator) expression).name().funcName().toLowerCase(Locale.ROOT);
        }
        if (REACHING_OUT.contains(name)) {
            refuse("the function " + name + " reaches out of its data");
        }
    }

    private static String part(Seq name, int index) {
        return ((String) name.apply(index)).toLowerCase(Locale.ROOT);
    }

    private static String last(Seq name) {
        return part(name, name.size() - 1);
    }

    /** The parser of a session. */
    static class Parser implements ParserInterface {
        private final SparkSession session;
        private final ParserInterface parser;

        Parser(SparkSession session, ParserInterface parser) {
            this.session = session;
            this.parser = parser;
        }

        private LogicalPlan checked(LogicalPlan plan) {
            if (!isFree(this.session)) {
                check(plan);
            }
            return plan;
        }

        @Override
        public LogicalPlan parsePlan(String text) throws ParseException {
            return this.checked(this.parser.parsePlan(text));
        }

        @Override
        public LogicalPlan parsePlanWithParameters(String text, ParameterContext parameters) throws ParseException {
            return this.checked(this.parser.parsePlanWithParameters(text, parameters));
        }

        /** Of views, which only the free session makes. */
        @Override
        public LogicalPlan parseQuery(String text) throws ParseException {
            return this.parser.parseQuery(text);
        }

        @Override
        public Expression parseExpression(String text) throws ParseException {
            return this.parser.parseExpression(text);
        }

        @Override
        public TableIdentifier parseTableIdentifier(String text) throws ParseException {
            return this.parser.parseTableIdentifier(text);
        }

        @Override
        public FunctionIdentifier parseFunctionIdentifier(String text) throws ParseException {
            return this.parser.parseFunctionIdentifier(text);
        }

        @Override
        public Seq parseMultipartIdentifier(String text) throws ParseException {
            return this.parser.parseMultipartIdentifier(text);
        }

        @Override
        public StructType parseRoutineParam(String text) throws ParseException {
            return this.parser.parseRoutineParam(text);
        }

        @Override
        public StructType parseTableSchema(String text) throws ParseException {
            return this.parser.parseTableSchema(text);
        }

        @Override
        public DataType parseDataType(String text) throws ParseException {
            return this.parser.parseDataType(text);
        }
    }
}
